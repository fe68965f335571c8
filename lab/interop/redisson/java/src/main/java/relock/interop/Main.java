package relock.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.ShardedSubscriptionMode;

/**
 * One Redisson client that does what the lines on its standard input say. A request is
 * "id thread command arguments...", its answer "id ok value" or "id failed exception: message", in whatever order the
 * requests are done. Each name of a thread is a thread of its own. Times are milliseconds; a lease of -1 means that the
 * watchdog renews. The first request is "connect kind watchdog master addresses", with the kinds single, sentinel,
 * cluster-sharded and cluster-plain; the switch below has the other commands. The program ends when its standard input
 * does.
 */
public final class Main {
    /** Replies go here and nothing else does: System.out is turned to standard error. */
    private final PrintStream out;

    /** Redisson's holder is a thread, so each thread that a request names is one of its own, with its own queue. */
    private final Map<String, ExecutorService> threads = new ConcurrentHashMap<>();

    private volatile RedissonClient redisson;

    private Main(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) throws IOException {
        Main program = new Main(new PrintStream(System.out, true, StandardCharsets.UTF_8));
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            program.accept(line);
        }
        // Whoever asked is gone. Threads that wait for a lock would keep the JVM for ever.
        Runtime.getRuntime().halt(0);
    }

    /** Hands the request to its thread, and reads on: a lock that blocks does not block the others. */
    private void accept(String line) {
        String[] words = line.split(" ");
        String id = words[0];
        threads.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor(task -> new Thread(task, name)))
                .execute(() -> reply(id, words));
    }

    private void reply(String id, String[] words) {
        String answer;
        try {
            answer = "ok " + run(words);
        } catch (Throwable e) { // also an Error: the test that waits for this answer has to hear of it
            e.printStackTrace();
            answer = "failed " + e.getClass().getSimpleName() + ": " + String.valueOf(e.getMessage()).replaceAll("\\s+", " ");
        }
        synchronized (out) {
            out.println(id + " " + answer);
        }
        if (words[2].equals("stop")) {
            Runtime.getRuntime().halt(0);
        }
    }

    /** Does one request: id, thread, command, arguments. */
    private Object run(String[] w) throws InterruptedException {
        switch (w[2]) {
            case "connect":
                redisson = Redisson.create(config(w[3], millis(w[4]), w[5], w[6].split(",")));
                return redisson.getId();
            case "stop":
                if (redisson != null) {
                    redisson.shutdown(0, 2, TimeUnit.SECONDS);
                }
                return "";
            case "thread":
                return Thread.currentThread().getId();
            case "fields":
                return fields(w[3]);
            case "increment":
                increment(plain(w[3]), w[4], Integer.parseInt(w[5]));
                return "";
            case "lock":
                plain(w[3]).lock(millis(w[4]), TimeUnit.MILLISECONDS);
                return "";
            case "tryLock":
                return plain(w[3]).tryLock(millis(w[4]), millis(w[5]), TimeUnit.MILLISECONDS);
            case "lockAndGetToken":
                return fenced(w[3]).lockAndGetToken(millis(w[4]), TimeUnit.MILLISECONDS);
            case "tryLockAndGetToken":
                return fenced(w[3]).tryLockAndGetToken(millis(w[4]), millis(w[5]), TimeUnit.MILLISECONDS);
            case "getToken":
                return fenced(w[3]).getToken();
            case "unlock":
                plain(w[3]).unlock();
                return "";
            case "unlockFenced":
                fenced(w[3]).unlock();
                return "";
            case "forceUnlock":
                return plain(w[3]).forceUnlock();
            case "holdCount":
                return plain(w[3]).getHoldCount();
            case "isLocked":
                return plain(w[3]).isLocked();
            case "remainTimeToLive":
                return plain(w[3]).remainTimeToLive();
            default:
                throw new IllegalArgumentException("no such command: " + w[2]);
        }
    }

    private RLock plain(String name) {
        return redisson.getLock(name);
    }

    private RFencedLock fenced(String name) {
        return redisson.getFencedLock(name);
    }

    private static long millis(String word) {
        return Long.parseLong(word);
    }

    /** The lock's hash as Java finds it, sorted: this is how Java sees the hold count of somebody else. */
    private String fields(String name) {
        Map<String, String> all = redisson.<String, String>getMap(name, StringCodec.INSTANCE).readAllMap();
        return new TreeMap<>(all).entrySet().stream()
                .map(e -> e.getKey() + "=" + e.getValue()).collect(Collectors.joining(","));
    }

    /** A read and a write that lose an increment if anybody else comes between them. */
    private void increment(RLock lock, String counter, int times) {
        RBucket<String> bucket = redisson.getBucket(counter, StringCodec.INSTANCE);
        for (int i = 0; i < times; i++) {
            lock.lock();
            try {
                String value = bucket.get();
                bucket.set(Integer.toString(value == null ? 1 : Integer.parseInt(value) + 1));
            } finally {
                lock.unlock();
            }
        }
    }

    private static Config config(String kind, long watchdog, String master, String[] addrs) {
        for (int i = 0; i < addrs.length; i++) {
            addrs[i] = "redis://" + addrs[i];
        }
        // Threads and connections for a handful of locks on a small machine. All else is Redisson's default.
        Config config = new Config().setThreads(2).setNettyThreads(2).setLockWatchdogTimeout(watchdog);
        switch (kind) {
            case "single":
                config.useSingleServer().setAddress(addrs[0])
                        .setConnectionMinimumIdleSize(2).setConnectionPoolSize(16);
                break;
            case "sentinel":
                small(config.useSentinelServers().setMasterName(master).addSentinelAddress(addrs));
                break;
            case "cluster-sharded":
                // AUTO, the default: sharded because these servers can do it.
                small(config.useClusterServers().setShardedSubscriptionMode(ShardedSubscriptionMode.AUTO)
                        .addNodeAddress(addrs));
                break;
            case "cluster-plain":
                small(config.useClusterServers().setShardedSubscriptionMode(ShardedSubscriptionMode.OFF)
                        .addNodeAddress(addrs));
                break;
            default:
                throw new IllegalArgumentException("no such kind of servers: " + kind);
        }
        return config;
    }

    /** By default reads go to replicas. The guarded counter is read where it was written. */
    private static void small(BaseMasterSlaveServersConfig<?> servers) {
        servers.setReadMode(ReadMode.MASTER)
                .setMasterConnectionMinimumIdleSize(1).setMasterConnectionPoolSize(16)
                .setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(4);
    }
}
