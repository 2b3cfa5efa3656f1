/* Rows are tried in children, which may die of them. */
static int forget_one(const char *path, const struct stat *status, int kind, struct FTW *at)
{
    (void)status, (void)kind, (void)at;
    remove(path);
    return 0;
}

/* Removes what the child has made, also for cases that it did not try. */
static void remove_objects(void)
{
    for (int i = 0; i < told->object_count; i++) {
        int id = told->objects[i].id;
        switch (told->objects[i].kind) {
        case SHM: shmctl(id, IPC_RMID, 0); break;
        case SEM: semctl(id, 0, IPC_RMID); break;
        case QUEUE: msgctl(id, IPC_RMID, 0); break;
        }
    }
    told->object_count = 0;
}

/* Waits for a child, and ends it when nothing goes on in it any more. Whether it did. */
static int wait_or_end(pid_t child, int *status)
{
    time_t since = seconds();
    unsigned seen = told->steps;
    int is_stuck = 0;
    for (;;) {
        pid_t ended = waitpid(child, status, WNOHANG);
        CHECK(ended >= 0);
        if (ended)
            return is_stuck;
        pass_us(1000);
        if (told->steps != seen) {
            seen = told->steps;
            since = seconds();
        }
        if (seconds() - since > STUCK_SECONDS && !is_stuck) {
            is_stuck = 1;
            kill(child, SIGKILL);
        }
    }
}

/* Runs a row, or one case of it, in a child; what became of a child that died is the result of the case. */
static void run(const struct row *row, int only)
{
    for (int hangs = 0;;) {
        char folder[] = "/tmp/calls-XXXXXX";
        CHECK(mkdtemp(folder));
        told->at = -1;
        fflush(0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            setpgid(0, 0);
            CHECK(!chdir(folder));
            pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
            CHECK(pagemap >= 0);
            try_row(row, only);
            _exit(0);
        }
        int status;
        int is_stuck = wait_or_end(child, &status);
        kill(-child, SIGKILL);
        remove_objects();
        nftw(folder, forget_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
        if (status == 0)
            return;
        if (told->at < 0) {
            printf("%s -> the row ended with %#x\n", row->name, status);
            return;
        }
        struct result *result = &told->results[told->at];
        result->is_done = 1;
        if (is_stuck || (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM))
            strcpy(result->text, "HANG"), hangs++;
        else if (WIFSIGNALED(status))
            snprintf(result->text, TEXT_MAX, "DIED of signal %d", WTERMSIG(status));
        else
            snprintf(result->text, TEXT_MAX, "ENDED with %d", WEXITSTATUS(status));
        if (only >= 0)
            return;
        for (int i = 0; hangs == HANGS_MAX && i < told->count; i++)
            if (!told->results[i].is_done) {
                told->results[i].is_done = 1;
                strcpy(told->results[i].text, "not tried after others that hang");
            }
    }
}

static void print_row(const struct row *row)
{
    for (int i = 0; i < told->count; i++) {
        struct result *result = &told->results[i];
        if (result->text[0])
            printf("%s %s %s %s -> %s\n", row->name, told->names[i / (STATES * PLACES)],
                   state_names[i / PLACES % STATES], place_names[i % PLACES], result->text);
    }
    fflush(stdout);
}
