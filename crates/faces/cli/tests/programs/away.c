/* What Linux reads or writes for a call is there, also when it had been paged out: names, and the path, arguments
   and environment of a program that is executed. */
#define MUCH (24 << 20)
#include "away.h"
#include <linux/seccomp.h>
#include <spawn.h>

#define AWAY (1 << 20)

static unsigned char *away;

/* Puts a string into a page of its own. */
static char *put(int page, const char *text)
{
    return strcpy((char *)away + (page + 1) * 8192 + 100, text);
}

static void names(void)
{
    char name[16], *longer = put(0, "a name of threads"), *into = put(1, "");
    send_away(away, AWAY, 0);
    CHECK(!prctl(PR_SET_NAME, longer));
    CHECK(!prctl(PR_GET_NAME, name) && !strcmp(name, "a name of threa"));
    send_away(away, AWAY, 0);
    CHECK(!prctl(PR_GET_NAME, into) && !strcmp(into, "a name of threa"));
    unsigned *action = (unsigned *)put(2, "");
    *action = SECCOMP_RET_ERRNO;
    send_away(away, AWAY, 0);
    CHECK(!syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, action));
    send_away(away, AWAY, 0);
    *action = 1;
    send_away(away, AWAY, 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, action) == -1 && errno == EOPNOTSUPP);
}

/* What the program is executed with. */
struct given {
    char *path, *args[4], *env[3];
};

static struct given *prepare(const char *path)
{
    struct given *given = (struct given *)put(3, "");
    static char argument[9000], variable[9000];
    memset(argument, 'a', sizeof argument - 1);
    memset(variable, 'v', sizeof variable - 1);
    memcpy(variable, "LONG=", 5);
    *given = (struct given){
        .path = put(4, path),
        .args = {put(5, "program"), put(6, "second"), put(8, argument), 0},
        .env = {put(12, variable), put(16, "SHORT=1"), 0},
    };
    return given;
}

static int second(char **args)
{
    CHECK(agent_active());
    CHECK(!strcmp(args[0], "program") && strlen(args[2]) == 8999 && !args[3]);
    CHECK(strspn(args[2], "a") == 8999);
    CHECK(strlen(getenv("LONG")) == 8994 && strspn(getenv("LONG"), "v") == 8994);
    CHECK(!strcmp(getenv("SHORT"), "1"));
    puts("second");
    return 7;
}

static void programs(const char *path)
{
    struct given *given = prepare(path);
    send_away(away, AWAY, 0);
    pid_t child = fork();
    if (child == 0) {
        execve(given->path, given->args, given->env);
        _exit(1);
    }
    wait_for(child, 7);
    send_away(away, AWAY, 0);
    CHECK(!posix_spawn(&child, given->path, 0, 0, given->args, given->env));
    wait_for(child, 7);
    /* Wrong ones are told as ever. */
    given->args[1] = (char *)8;
    send_away(away, AWAY, 0);
    CHECK(execve(given->path, given->args, given->env) == -1 && errno == EFAULT);
    given->args[1] = put(6, "second");
    given->env[1] = (char *)8;
    send_away(away, AWAY, 0);
    CHECK(execve(given->path, given->args, given->env) == -1 && errno == EFAULT);
    given->env[1] = put(16, "SHORT=1");
    strcpy(given->path, "/nowhere");
    send_away(away, AWAY, 0);
    CHECK(execve(given->path, given->args, given->env) == -1 && errno == ENOENT);
}

/* More than Linux takes. */
static void too_many(const char *path)
{
    static char argument[100000], *args[72];
    memset(argument, 'a', sizeof argument - 1);
    for (int i = 0; i < 71; i++)
        args[i] = argument;
    CHECK(execv(path, args) == -1 && errno == E2BIG);
}

int main(int count, char **args)
{
    if (count > 1)
        return second(args);
    CHECK(agent_active());
    away = map(AWAY);
    names();
    programs(args[0]);
    too_many(args[0]);
    puts("ok");
}
