/* Ends by SIGABRT, most of its memory paged out; with an argument a child of it does. */
#define MUCH (48 << 20)
#include "away.h"

int main(int count, char **)
{
    press();
    if (count > 1) {
        int status;
        pid_t child = fork();
        if (!child) {
            /* Farpage notices a new process within 50 ms. */
            pass_us(5000000);
            abort();
        }
        CHECK(waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGABRT);
        return 0;
    }
    abort();
}
