// A Mono program: arrays, a dictionary, garbage of all generations, threads that the collector suspends, timers and
// a null reference that is caught as a signal. usage: Job.exe MIB
using System;
using System.Collections.Generic;
using System.Threading;

class Node { public Node Left, Right; public ulong Value; }

class Job {
    static ulong Mix(ulong x) {
        x += 0x9e3779b97f4a7c15UL;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9UL;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebUL;
        return x ^ (x >> 31);
    }
    static ulong Digest(ulong[] words) {
        ulong h = 1;
        foreach (ulong w in words) h = Mix(h ^ w);
        return h;
    }
    static ulong[] Filled(int n, ulong seed) {
        var words = new ulong[n];
        for (int i = 0; i < n; i++) words[i] = Mix(seed + (ulong)i);
        return words;
    }
    static Node Build(int depth, ulong at) {
        var node = new Node { Value = Mix(at) };
        if (depth > 0) { node.Left = Build(depth - 1, 2 * at); node.Right = Build(depth - 1, 2 * at + 1); }
        return node;
    }
    static ulong Sum(Node node) { return node == null ? 0 : node.Value + Sum(node.Left) + Sum(node.Right); }

    static int Main(string[] args) {
        int mib = int.Parse(args[0]), ticks = 0, caught = 0;
        var timer = new Timer(_ => Interlocked.Increment(ref ticks), null, 10, 10);
        var words = Filled(mib << 16, 0);
        Console.WriteLine("filled {0} {1:x}", words.Length, Digest(words));
        var map = new Dictionary<ulong, string>();
        for (int i = 0; i < mib * 2000; i++) map[Mix((ulong)i)] = "value " + i;
        long total = 0;
        for (int i = 0; i < mib * 2000; i++) total += map[Mix((ulong)i)].Length;
        Console.WriteLine("map {0} {1}", map.Count, total);
        var sums = new ulong[4];
        var threads = new Thread[4];
        for (int t = 0; t < 4; t++) {
            int k = t;
            threads[t] = new Thread(() => {
                for (int round = 0; round < 6; round++) {
                    sums[k] ^= Digest(Filled(mib << 10, (ulong)(k * 1000 + round)));
                    sums[k] += Sum(Build(12, (ulong)(k + 1)));
                    if (k == 0) GC.Collect();
                }
            });
            threads[t].Start();
        }
        foreach (var thread in threads) thread.Join();
        Console.WriteLine("threads {0:x} {1:x} {2:x} {3:x}", sums[0], sums[1], sums[2], sums[3]);
        Node none = args.Length > 5 ? new Node() : null;
        for (int i = 0; i < 100; i++) {
            try { caught += (int)none.Value; } catch (NullReferenceException) { caught++; }
        }
        Console.WriteLine("caught {0}", caught);
        GC.Collect();
        Console.WriteLine("again {0:x} {1} {2}", Digest(words), map.Count, ticks > 0);
        timer.Dispose();
        return 0;
    }
}
