// ArgoDSM between two hosts: node 0 has the memory, node 1 reads and writes it. ArgoDSM sends
// what was written when a program releases it; that is not counted here.
//
//     mpic++ -O2 -std=c++17 -DOMPI_SKIP_MPICXX=1 -I PREFIX/include/argo -I PREFIX/include/qd \
//         -L PREFIX/lib -Wl,-rpath,PREFIX/lib -o argo argo.cpp -largo -largobackend-mpi
#include <argo.hpp>

#include <vector>

#include "times.h"

namespace {

constexpr argo::node_id_t home = 0;
constexpr std::size_t MEMORY = std::size_t(64) << 20;

// Pages that lie at the home.
std::vector<volatile std::uint64_t *> pages_at_home(std::uint64_t *words, std::size_t pages)
{
    std::vector<volatile std::uint64_t *> found;
    for (; found.size() < pages; words += PAGE / sizeof *words) {
        if (argo::get_homenode(words) == home)
            found.push_back(words);
    }
    return found;
}

template <typename One>
void each(const char *what, const std::vector<volatile std::uint64_t *> &pages, std::size_t count,
          One one)
{
    std::vector<std::uint64_t> times;
    for (std::size_t at = 0; at < count; at++) {
        std::uint64_t began = now_ns();
        one(pages[at]);
        times.push_back(now_ns() - began);
    }
    if (what != nullptr)
        print_times(what, times.data(), times.size());
}

void reads(volatile std::uint64_t *page) { (void)*page; }
void writes(volatile std::uint64_t *page) { *page = *page + 1; }
// Not known before: what is there is not read.
void overwrites(volatile std::uint64_t *page) { *page = 7; }

using argo::backend::atomic::memory_order;
using argo::data_distribution::global_ptr;

// Both hosts at once, to one word.
void adds(std::uint64_t *word)
{
    global_ptr<std::uint64_t> shared(word);
    std::uint64_t began = now_ns();
    for (int count = 0; count < ADDS; count++)
        argo::backend::atomic::fetch_add(shared, 1, memory_order::relaxed);
    std::uint64_t mean = (now_ns() - began) / ADDS;
    print_times("add", &mean, 1);
}

}

int main(int count, char **words)
{
    struct told told_us = told(count, words);
    argo::init(MEMORY, MEMORY);
    // More than half of it, so that each node has some.
    std::size_t length = MEMORY / sizeof(std::uint64_t) / 4 * 3;
    auto *memory = argo::conew_array<std::uint64_t>(length);
    auto pages = pages_at_home(memory, told_us.pages);
    // The other host has the word that says that all is done.
    global_ptr<std::uint64_t> done(memory + length - 1);
    bool at_home = argo::node_id() == home;
    std::size_t some = told_us.computes ? std::size_t(COMPUTED) : pages.size();
    if (at_home)
        each(nullptr, pages, pages.size(), overwrites);
    argo::barrier();
    if (!at_home) {
        each("read", pages, some, reads);
        each("upgrade", pages, some, writes);
        if (told_us.computes)
            argo::backend::atomic::store(done, std::uint64_t(1), memory_order::relaxed);
    }
    if (at_home && told_us.computes)
        do
            compute();
        while (argo::backend::atomic::load(done, memory_order::relaxed) == 0);
    argo::barrier();
    if (!told_us.computes) {
        // What both have written to neither keeps.
        if (at_home)
            each(nullptr, pages, pages.size(), writes);
        argo::barrier();
        if (!at_home)
            each("write", pages, some, overwrites);
        argo::barrier();
        // The home knows already who reads.
        if (at_home)
            each(nullptr, pages, pages.size(), writes);
        argo::barrier();
        if (!at_home)
            each("read-again", pages, some, reads);
        argo::barrier();
        adds(const_cast<std::uint64_t *>(pages.front()));
    }
    argo::barrier();
    argo::finalize();
}
