// Boost's fibers' lower half: contexts that are switched by hand, with stacks from mmap and from malloc, and exceptions
// thrown through them. usage: job MIB
#include <boost/context/continuation.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace ctx = boost::context;

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static const size_t STACK = 160 << 10;

static uint64_t deep(unsigned n, uint64_t seed)
{
    volatile uint64_t own[500];
    for (unsigned i = 0; i < 500; i++)
        own[i] = mix(seed * 1000 + n * 500 + i);
    uint64_t below;
    if (n == 0)
        throw std::runtime_error("the bottom");
    try {
        below = deep(n - 1, seed);
    } catch (const std::runtime_error &) {
        below = 1;
    }
    for (unsigned i = 0; i < 500; i++)
        below = mix(below ^ own[i]);
    return below;
}

int main(int argc, char **argv)
{
    size_t mib = argc > 1 ? strtoul(argv[1], nullptr, 10) : 64;
    size_t count = (mib << 20) / STACK;
    std::vector<ctx::continuation> fibers;
    std::vector<uint64_t> sums(count);
    auto body = [&sums](size_t number) {
        return [&sums, number](ctx::continuation &&back) {
            for (int round = 0; round < 4; round++) {
                sums[number] ^= deep(32, number * 8 + round);
                back = back.resume();
            }
            return std::move(back);
        };
    };
    for (size_t i = 0; i < count; i++) {
        if (i % 2)
            fibers.push_back(ctx::callcc(std::allocator_arg, ctx::fixedsize_stack(STACK), body(i)));
        else
            fibers.push_back(
                ctx::callcc(std::allocator_arg, ctx::protected_fixedsize_stack(STACK), body(i)));
    }
    for (int round = 0; round < 4; round++)
        for (size_t i = 0; i < count; i++)
            fibers[i] = fibers[i].resume();
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++)
        all = mix(all ^ sums[i]);
    printf("%zu fibers %016llx\n", count, (unsigned long long)all);
}
