/* A process that becomes another one uses memory, most of which is paged out. What it does is said by its arguments, one
   after the other: it changes its user, its root, its namespaces, ...; it uses memory; it goes on in a child. */
#include "check.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/landlock.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define MIB (1 << 20)
#define BYTES (20 * MIB)

enum { SET_MERGE = 67, GET_MERGE = 68 };

static void use(void)
{
    unsigned long *at = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    unsigned long seed = 1;
    for (size_t i = 0; i < BYTES / sizeof *at; i++)
        at[i] = seed = seed * 6364136223846793005 + 1;
    seed = 1;
    for (size_t i = 0; i < BYTES / sizeof *at; i++)
        CHECK(at[i] == (seed = seed * 6364136223846793005 + 1));
    CHECK(!munmap(at, BYTES));
}

static void another_user(void)
{
    CHECK(!setgroups(0, 0) && !setgid(65534) && !setuid(65534));
}

static void undumpable(void)
{
    CHECK(!prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
}

static void another_root(void)
{
    char name[] = "/tmp/farpage-changed-XXXXXX";
    int before = open("/", O_RDONLY | O_DIRECTORY);
    CHECK(before >= 0 && mkdtemp(name) && !chroot(name) && !chdir("/"));
    /* Of the folder nothing is left. */
    CHECK(!unlinkat(before, name + 1, AT_REMOVEDIR) && !close(before));
}

static void no_proc(void)
{
    CHECK(!unshare(CLONE_NEWNS) && !mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) && !umount2("/proc", MNT_DETACH));
}

static void no_rights(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    CHECK(!syscall(SYS_capset, &header, none));
}

static void no_files(void)
{
    struct landlock_ruleset_attr all = {LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE};
    long rules = syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    CHECK(rules >= 0 && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!syscall(SYS_landlock_restrict_self, rules, 0) && open("/proc/self/maps", O_RDONLY) < 0);
}

/* More than a program that starts others. */
static void a_little(void)
{
    char *block = malloc(6 * MIB);
    CHECK(block);
    memset(block, 1, 6 * MIB);
}

static void child(void)
{
    pid_t made = fork();
    if (made) {
        wait_for(made, 0);
        _exit(0);
    }
}

static void session(void)
{
    child();
    CHECK(setsid() > 0);
}

static void mounts(void)
{
    CHECK(!unshare(CLONE_NEWNS));
}

static void network(void)
{
    CHECK(!unshare(CLONE_NEWNET));
}

static void files(void)
{
    CHECK(!unshare(CLONE_FILES | CLONE_FS));
}

/* What the program closes in a table of its own is closed: where nobody else has it, it ends. */
static void ends(int way)
{
    int pipes[2];
    char byte;
    CHECK(!pipe(pipes));
    if (way) {
        CHECK(dup2(pipes[0], 601) == 601 && dup2(pipes[1], 600) == 600 && !close(pipes[1]));
        CHECK(!syscall(SYS_close_range, 600, 600, CLOSE_RANGE_UNSHARE));
        CHECK(!close(601));
    } else {
        CHECK(!unshare(CLONE_FILES) && !close(pipes[1]));
    }
    CHECK(read(pipes[0], &byte, 1) == 0 && !close(pipes[0]));
}

static void pipes(void)
{
    ends(0);
    ends(1);
}

/* Its children are in another namespace of processes. */
static void processes(void)
{
    CHECK(!unshare(CLONE_NEWPID));
}

/* Its children are in another namespace of time. */
static void times(void)
{
    CHECK(!unshare(CLONE_NEWTIME));
}

/* As the first process of a container does it; some systems allow it to root alone. */
static void users_and_processes(void)
{
    CHECK(!unshare(CLONE_NEWUSER | CLONE_NEWPID) || errno == EPERM || errno == ENOSPC);
}

/* Linux refuses it to a process that has threads, and the agent has some when memory is managed. */
static void no_users(void)
{
    CHECK(unshare(CLONE_NEWUSER) == -1 && (errno == EINVAL || errno == EPERM));
}

/* A child that has made a namespace, of which a descriptor is opened. */
static int of_child(const char *kind, int flags, pid_t *made)
{
    char name[64];
    int ready[2];
    CHECK(!pipe(ready));
    *made = fork();
    if (!*made) {
        CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0));
        CHECK(!unshare(flags) && write(ready[1], "", 1) == 1);
        pause();
    }
    CHECK(*made > 0 && read(ready[0], name, 1) == 1 && !close(ready[0]) && !close(ready[1]));
    snprintf(name, sizeof name, "/proc/%d/ns/%s", *made, kind);
    int space = open(name, O_RDONLY);
    CHECK(space >= 0);
    return space;
}

/* It joins the namespace that a child has made. Linux refuses that to a thread that shares its folders. */
static void join_mounts(void)
{
    pid_t made;
    int space = of_child("mnt", CLONE_NEWNS, &made);
    CHECK(!setns(space, CLONE_NEWNS) && !close(space));
    CHECK(!kill(made, SIGKILL) && waitpid(made, 0, 0) == made);
}

/* Its children are in the namespace of another process, which a child has made. */
static void join_processes(void)
{
    pid_t made;
    int first = open("/proc/self/ns/pid_for_children", O_RDONLY);
    CHECK(first >= 0 && !unshare(CLONE_NEWPID));
    int space = of_child("pid", 0, &made);
    CHECK(!setns(first, 0) && !setns(space, 0) && !close(first) && !close(space));
    child();
}

/* As nsenter does it: the namespace of users last, which Linux refuses to a process that has threads. */
static void join_users(void)
{
    pid_t made;
    int users = of_child("user", CLONE_NEWUSER, &made);
    int own = open("/proc/self/ns/pid", O_RDONLY);
    CHECK(own >= 0 && !setns(own, 0) && !setns(users, 0) && !close(own) && !close(users));
    CHECK(!kill(made, SIGKILL) && waitpid(made, 0, 0) == made);
}

/* Linux merges no page of this process, nor of those that it makes; asking for it is no error. */
static void merged(void)
{
    CHECK(!prctl(SET_MERGE, 1, 0, 0, 0) && prctl(GET_MERGE, 0, 0, 0, 0) <= 0);
    char *at = mmap(0, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && !madvise(at, 64 * MIB, MADV_MERGEABLE));
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512];
    CHECK(smaps);
    while (fgets(line, sizeof line, smaps))
        CHECK(strncmp(line, "VmFlags:", 8) || !strstr(line, " mg"));
    fclose(smaps);
    CHECK(!munmap(at, 64 * MIB));
}

static const struct {
    const char *word;
    void (*change)(void);
} WORDS[] = {
    {"use", use},           {"user", another_user}, {"undumpable", undumpable}, {"root", another_root},
    {"no-proc", no_proc},   {"child", child},       {"no-rights", no_rights},   {"session", session},
    {"mounts", mounts},     {"network", network},   {"files", files},           {"landlock", no_files},
    {"merged", merged},     {"pipes", pipes},       {"processes", processes},   {"join-mounts", join_mounts},
    {"join-processes", join_processes}, {"no-users", no_users}, {"times", times},
    {"join-users", join_users}, {"a-little", a_little},
    {"users-and-processes", users_and_processes},
};

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "all-merged")) {
        (void)prctl(SET_MERGE, 1, 0, 0, 0);
        CHECK(execv(argv[2], argv + 2));
    }
    for (int i = 1; i < argc; i++) {
        size_t known = 0;
        while (known < LENGTH(WORDS) && strcmp(WORDS[known].word, argv[i]))
            known++;
        CHECK(known < LENGTH(WORDS));
        WORDS[known].change();
    }
    puts("as it should be");
    return 0;
}
