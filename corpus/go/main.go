// A Go program, linked statically: large slices and maps, a garbage collector at work, goroutines
// that share memory, and a child process. usage: main MIB
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"sync"
)

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

func digest(words []uint64) string {
	h := sha256.New()
	var buf [8]byte
	for _, w := range words {
		binary.LittleEndian.PutUint64(buf[:], w)
		h.Write(buf[:])
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:32]
}

func sorted(n int) []uint64 {
	words := make([]uint64, n)
	for i := range words {
		words[i] = mix(uint64(i))
	}
	var wg sync.WaitGroup
	half := n / 2
	for _, part := range [][]uint64{words[:half], words[half:]} {
		wg.Add(1)
		go func(p []uint64) {
			defer wg.Done()
			sort.Slice(p, func(i, j int) bool { return p[i] < p[j] })
		}(part)
	}
	wg.Wait()
	return words
}

type node struct {
	left, right *node
	value       uint64
}

func build(depth int, at uint64) *node {
	n := &node{value: mix(at)}
	if depth > 0 {
		n.left, n.right = build(depth-1, 2*at), build(depth-1, 2*at+1)
	}
	return n
}

func (n *node) sum() uint64 {
	if n == nil {
		return 0
	}
	return n.value + n.left.sum() + n.right.sum()
}

func main() {
	mib, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	if len(os.Args) > 2 {
		fmt.Println("child", digest(sorted(mib<<17/4)))
		return
	}
	words := sorted(mib << 17 / 2)
	fmt.Println("sorted", len(words), digest(words))
	table := make(map[uint64]uint64)
	for i := uint64(0); i < uint64(mib)*4000; i++ {
		table[mix(i)] = i
	}
	var sum uint64
	for i := uint64(0); i < uint64(mib)*4000; i++ {
		sum += table[mix(i)]
	}
	fmt.Println("map", len(table), sum)
	for round := 0; round < 3; round++ { // garbage, given back to the system each time
		tree := build(18, 1)
		fmt.Println("tree", round, tree.sum())
		runtime.GC()
		debug.FreeOSMemory()
	}
	child := exec.Command(os.Args[0], os.Args[1], "child")
	out, err := child.Output()
	fmt.Print(string(out))
	fmt.Println("again", digest(words), err == nil)
}
