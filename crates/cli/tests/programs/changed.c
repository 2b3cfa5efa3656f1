/* A process that becomes another one uses memory, most of which is paged out. What it does is said by its arguments, one
   after the other: it changes its user, its root, its namespaces, ...; it uses memory; it goes on in a child. */
#include "check.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define MIB (1 << 20)
#define BYTES (24 * MIB)

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
    {"merged", merged},
};

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "all-merged")) {
        (void)prctl(SET_MERGE, 1, 0, 0, 0);
        CHECK(execv(argv[2], argv + 2));
    }
    for (int i = 1; i < argc; i++) {
        size_t known = 0;
        while (known < sizeof WORDS / sizeof *WORDS && strcmp(WORDS[known].word, argv[i]))
            known++;
        CHECK(known < sizeof WORDS / sizeof *WORDS);
        WORDS[known].change();
    }
    puts("as it should be");
    return 0;
}
