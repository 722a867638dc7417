import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson's part of the benchmark `family`. Reads one order per line, and answers each order with one line of JSON.
 *
 * <pre>
 * loop readers|writers|mixed|permits BEGIN END KEY...   a thread for each key acquires and releases from BEGIN to END
 * hold COUNT KEY                                        takes the read lock under the names of COUNT threads
 * enter KEY                                             takes the read lock under the name of one thread more
 * leave KEY                                             releases what `enter` has taken
 * </pre>
 *
 * Times are ns since 1970. The answer to `loop` is that of `Harness.java`.
 */
public final class Family {
    /** The lease of every lock of the benchmark, except of those that `hold` takes. */
    private static final long LEASE_MS = 30_000;
    private static final long LONG_LEASE_MS = 3_600_000;
    private static final int PERMITS = 10;
    /** In `mixed`, each thread writes once in this number of turns. */
    private static final int WRITES_ONCE_IN = 20;
    private static final long ONE_MORE = 1_000_000;

    private final RedissonClient client;
    private final ExecutorService threads = Executors.newCachedThreadPool();

    private Family(RedissonClient client) {
        this.client = client;
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]);
        RedissonClient client = Redisson.create(config);
        Family family = new Family(client);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("\"ready\"");
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            System.out.println(family.obey(order.split(" ")));
        }
        family.threads.shutdown();
        client.shutdown();
    }

    private String obey(String[] order) throws Exception {
        RLock reader = client.getReadWriteLock(order[order.length - 1]).readLock();
        switch (order[0]) {
            case "loop" -> {
                return loop(order);
            }
            case "hold" -> {
                for (long thread = 1; thread <= Long.parseLong(order[1]); thread++) {
                    reader.lockAsync(LONG_LEASE_MS, TimeUnit.MILLISECONDS, thread).get();
                }
            }
            case "enter" -> reader.lockAsync(LONG_LEASE_MS, TimeUnit.MILLISECONDS, ONE_MORE).get();
            case "leave" -> reader.unlockAsync(ONE_MORE).get();
            default -> throw new IllegalArgumentException(order[0]);
        }
        return "null";
    }

    /** Acquires in the turn with this number. Returns the action that releases. */
    private interface Acquire {
        Runnable in(int turn) throws Exception;
    }

    private Acquire acquire(String calls, String key) throws Exception {
        if (calls.equals("permits")) {
            RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(key);
            semaphore.trySetPermits(PERMITS);
            return turn -> {
                String permit = semaphore.acquire(LEASE_MS, TimeUnit.MILLISECONDS);
                return () -> semaphore.release(permit);
            };
        }
        RReadWriteLock both = client.getReadWriteLock(key);
        return turn -> {
            boolean writes = calls.equals("writers") || calls.equals("mixed") && turn % WRITES_ONCE_IN == 0;
            RLock lock = writes ? both.writeLock() : both.readLock();
            lock.lock(LEASE_MS, TimeUnit.MILLISECONDS);
            return lock::unlock;
        };
    }

    /** Runs a thread for each key. The first turn of each thread has the number of its key. */
    private String loop(String[] order) throws Exception {
        long begin = Long.parseLong(order[2]);
        long end = Long.parseLong(order[3]);
        List<Future<List<Long>>> running = new ArrayList<>();
        for (int i = 4; i < order.length; i++) {
            int first = i - 4;
            Acquire acquire = acquire(order[1], order[i]);
            running.add(threads.submit(() -> {
                while (now() < begin) {
                    LockSupport.parkNanos(begin - now());
                }
                List<Long> visits = new ArrayList<>();
                int turn = first;
                for (long asked = now(); asked < end; asked = now()) {
                    Runnable release = acquire.in(turn++);
                    long entered = now();
                    visits.addAll(List.of(asked, entered, now()));
                    release.run();
                }
                return visits;
            }));
        }
        List<List<Long>> tasks = new ArrayList<>();
        for (Future<List<Long>> one : running) {
            tasks.add(one.get());
        }
        String visits = tasks.stream().map(Object::toString).collect(Collectors.joining(","));
        return "{\"done\":" + now() + ",\"tasks\":[" + visits + "]}";
    }

    private static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }
}
