// A program of 200 MB, of which a start uses little: 2,000 functions of a page each, and constants.
#include <stdio.h>
#include <stdlib.h>

__asm__(".section .rodata\n.balign 4096\nconstants: .fill 24000000, 8, 0x0102030405060708\n.text");
extern const volatile unsigned long constants[] __attribute__((visibility("hidden")));

#define ONE(n) \
    __attribute__((noinline, aligned(4096))) static long f##n(long x) { return x * 3 + 0x##n; }
#define TEN(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7) ONE(n##8) ONE(n##9)
#define HUNDRED(n) TEN(n##0) TEN(n##1) TEN(n##2) TEN(n##3) TEN(n##4) TEN(n##5) TEN(n##6) TEN(n##7) TEN(n##8) TEN(n##9)
#define THOUSAND(n) HUNDRED(n##0) HUNDRED(n##1) HUNDRED(n##2) HUNDRED(n##3) HUNDRED(n##4) HUNDRED(n##5) HUNDRED(n##6) HUNDRED(n##7) HUNDRED(n##8) HUNDRED(n##9)
THOUSAND(1) THOUSAND(2)
#undef ONE
#define ONE(n) f##n,
static long (*const functions[])(long) = {THOUSAND(1) THOUSAND(2)};

int main(void) {
    long sum = 0;
    // Every 50th function, and 40 places among the constants.
    for (int i = 0; i < 2000; i += 50) sum = functions[i](sum) % 1000003;
    for (int i = 0; i < 40; i++) sum += constants[i * 600000] % 1009;
    printf("%ld\n", sum);
    return 0;
}
