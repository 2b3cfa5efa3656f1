/* Goes through more memory than there is, and prints how many KiB lie in anonymous memory that is
 * not managed: Farpage's own, in its agent, and the little that the C library has. */
#include <stdio.h>
#include <sys/mman.h>

#define BYTES (160ul << 20)
/* Managed memory lies below. */
#define ABOVE 0x700000000000ul

int main(void)
{
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	unsigned long seed = 1;
	for (int pass = 0; pass < 4; pass++)
		for (unsigned long at = 0; at < BYTES; at += 64) {
			/* Half of each page compresses. */
			seed = seed * 6364136223846793005ul + 1;
			*(unsigned long *)(memory + at) += seed >> (at & 64 ? 60 : 0);
		}
	FILE *maps = fopen("/proc/self/smaps", "r");
	if (!maps)
		return 2;
	char line[512];
	unsigned long start, end, of = 0, kib, sum = 0;
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			of = start;
		else if (sscanf(line, "Anonymous: %lu kB", &kib) == 1 && of >= ABOVE)
			sum += kib;
	}
	printf("%lu\n", sum);
	return 0;
}
