/* Locks all that it has and will have, and then uses more than may be in memory. */
#define MUCH (48 << 20)
#include "away.h"

int main(void)
{
    CHECK(!mlockall(MCL_CURRENT | MCL_FUTURE));
    press();
    press();
    return 0;
}
