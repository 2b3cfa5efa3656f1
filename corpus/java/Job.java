import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;

/** A JVM program: large arrays, a large map, garbage, direct buffers, threads. usage: Job MIB */
public class Job {
    static long mix(long x) {
        x += 0x9e3779b97f4a7c15L;
        x = (x ^ (x >>> 30)) * 0xbf58476d1ce4e5b9L;
        x = (x ^ (x >>> 27)) * 0x94d049bb133111ebL;
        return x ^ (x >>> 31);
    }

    static long digest(long[] words) {
        long h = 1;
        for (long w : words) h = mix(h ^ w);
        return h;
    }

    public static void main(String[] args) throws Exception {
        int mib = Integer.parseInt(args[0]);
        long[] words = new long[mib << 15];
        for (int i = 0; i < words.length; i++) words[i] = mix(i);
        Arrays.sort(words);
        System.out.printf("sorted %d %016x%n", words.length, digest(words));
        HashMap<Long, String> map = new HashMap<>();
        for (long i = 0; i < mib * 1500L; i++) map.put(mix(i), "value " + i);
        long sum = 0;
        for (long i = 0; i < mib * 1500L; i++) sum += map.get(mix(i)).hashCode();
        System.out.println("map " + map.size() + " " + sum);
        long garbage = 0;
        for (int round = 0; round < 50; round++) {
            byte[][] blocks = new byte[mib / 4][];
            for (int b = 0; b < blocks.length; b++) {
                blocks[b] = new byte[1 << 18];
                blocks[b][round * 7 % 1000] = (byte) b;
                garbage += blocks[b][round * 7 % 1000];
            }
        }
        System.out.println("garbage " + garbage);
        ByteBuffer direct = ByteBuffer.allocateDirect(mib << 18);
        Thread[] threads = new Thread[4];
        for (int t = 0; t < threads.length; t++) {
            final int from = t * (direct.capacity() / 4);
            threads[t] = new Thread(() -> {
                for (int i = 0; i < direct.capacity() / 4; i += 8) {
                    direct.putLong(from + i, mix(from + i));
                }
            });
            threads[t].start();
        }
        for (Thread t : threads) t.join();
        long h = 1;
        for (int i = 0; i < direct.capacity(); i += 8) h = mix(h ^ direct.getLong(i));
        System.out.printf("direct %016x again %016x%n", h, digest(words));
    }
}
