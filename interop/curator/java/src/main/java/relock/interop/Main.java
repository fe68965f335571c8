package relock.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Takes and frees one lock of Curator: each line of standard input is lock or unlock, and has one answer. */
final class Main {
    private Main() {}

    public static void main(String[] args) throws Exception {
        int sessionMillis = Integer.parseInt(args[2]);
        try (CuratorFramework curator = CuratorFrameworkFactory.newClient(args[0], sessionMillis, 5_000, new RetryOneTime(100))) {
            curator.start();
            InterProcessMutex mutex = new InterProcessMutex(curator, args[1]);
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                switch (line) {
                    case "lock" -> {
                        mutex.acquire();
                        System.out.println("locked");
                    }
                    case "unlock" -> {
                        mutex.release();
                        System.out.println("unlocked");
                    }
                    default -> throw new IllegalArgumentException(line);
                }
            }
        }
    }
}
