package relock.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

/**
 * Takes and frees locks of Curator, a mutex and a read-write lock on one path: each line of standard input, such as
 * "lock mutex", "lock read" or "unlock write", has one answer.
 */
final class Main {
    private Main() {}

    public static void main(String[] args) throws Exception {
        int sessionMillis = Integer.parseInt(args[2]);
        try (CuratorFramework curator = CuratorFrameworkFactory.newClient(args[0], sessionMillis, 5_000, new RetryOneTime(100))) {
            curator.start();
            InterProcessReadWriteLock both = new InterProcessReadWriteLock(curator, args[1]);
            Map<String, InterProcessLock> locks = Map.of(
                    "mutex", new InterProcessMutex(curator, args[1]), "read", both.readLock(), "write", both.writeLock());
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] words = line.split(" ");
                InterProcessLock lock = locks.get(words[1]);
                switch (words[0]) {
                    case "lock" -> lock.acquire();
                    case "unlock" -> lock.release();
                    default -> throw new IllegalArgumentException(line);
                }
                System.out.println(words[0] + "ed " + words[1]);
            }
        }
    }
}
