package relock.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Clients that all want one lock of Curator. Each line of standard input is a number of sections for all clients together. The
 * answer is the mean time of a section in nanoseconds.
 */
final class Measure {
    private Measure() {}

    public static void main(String[] args) throws Exception {
        int sessionMillis = Integer.parseInt(args[2]);
        List<InterProcessMutex> mutexes = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(args[3]); i++) {
            CuratorFramework curator = CuratorFrameworkFactory.newClient(args[0], sessionMillis, 5_000, new RetryOneTime(100));
            curator.start();
            mutexes.add(new InterProcessMutex(curator, args[1]));
        }
        ExecutorService threads = Executors.newFixedThreadPool(mutexes.size());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            int sections = Integer.parseInt(line);
            AtomicInteger left = new AtomicInteger(sections);
            long start = System.nanoTime();
            List<Future<?>> all = new ArrayList<>();
            for (InterProcessMutex mutex : mutexes) {
                all.add(threads.submit(() -> {
                    while (left.getAndDecrement() > 0) {
                        mutex.acquire();
                        mutex.release();
                    }
                    return null;
                }));
            }
            for (Future<?> one : all) {
                one.get();
            }
            System.out.println((System.nanoTime() - start) / sections);
        }
        System.exit(0); // the clients have threads
    }
}
