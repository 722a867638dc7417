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
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson's part of the benchmark. Reads one order per line, and answers each order with one line of JSON.
 *
 * <pre>
 * loop plain|fair BEGIN END KEY...          a thread for each key locks and unlocks repeatedly from BEGIN to END
 * call plain|fair BEGIN BODY_MS KEY...      a thread for each key locks once, at BEGIN, and unlocks after BODY_MS
 * cancel once|timed PAUSE_NS KEY...         requests each lock; cancels request number N (from 0) after N x PAUSE_NS
 * </pre>
 *
 * Times are ns since 1970. The answer to `loop` and `call` has the time at which all threads had ended, and three
 * timestamps for each acquisition: when the thread requested the lock, when it got the lock, and when it unlocked the
 * lock. Redisson renews a lock that `cancel once` requests, but not one that `cancel timed` requests. The answer to
 * `cancel` is the number of requests that were cancelled before they were answered.
 */
public final class Harness {
    /** The lease of every lock of the benchmark. */
    private static final long LEASE_MS = 30_000;

    private final RedissonClient client;
    private final ExecutorService threads = Executors.newCachedThreadPool();

    private Harness(RedissonClient client) {
        this.client = client;
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]);
        RedissonClient client = Redisson.create(config);
        Harness harness = new Harness(client);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("\"ready\"");
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            System.out.println(harness.obey(order.split(" ")));
        }
        harness.threads.shutdown();
        client.shutdown();
    }

    private String obey(String[] order) throws Exception {
        boolean fair = order[1].equals("fair");
        switch (order[0]) {
            case "loop" -> {
                long end = Long.parseLong(order[3]);
                return seat(order, 4, fair, lock -> {
                    List<Long> visits = new ArrayList<>();
                    for (long asked = now(); asked < end; asked = now()) {
                        visit(lock, asked, 0, visits);
                    }
                    return visits;
                });
            }
            case "call" -> {
                long body = Long.parseLong(order[3]);
                return seat(order, 4, fair, lock -> {
                    List<Long> visits = new ArrayList<>();
                    visit(lock, now(), body, visits);
                    return visits;
                });
            }
            case "cancel" -> {
                return cancel(order, order[1].equals("timed"));
            }
            default -> throw new IllegalArgumentException(order[0]);
        }
    }

    private interface Task {
        List<Long> of(RLock lock) throws Exception;
    }

    /** Runs the task once for each key, each time on a thread of its own. All threads begin at the order's BEGIN. */
    private String seat(String[] order, int firstKey, boolean fair, Task task) throws Exception {
        long begin = Long.parseLong(order[2]);
        List<Future<List<Long>>> running = new ArrayList<>();
        for (int i = firstKey; i < order.length; i++) {
            RLock lock = lock(order[i], fair);
            running.add(threads.submit(() -> {
                while (now() < begin) {
                    LockSupport.parkNanos(begin - now());
                }
                return task.of(lock);
            }));
        }
        List<List<Long>> tasks = new ArrayList<>();
        for (Future<List<Long>> one : running) {
            tasks.add(one.get());
        }
        long done = now();
        String visits = tasks.stream().map(Object::toString).collect(Collectors.joining(","));
        return "{\"done\":" + done + ",\"tasks\":[" + visits + "]}";
    }

    private static void visit(RLock lock, long asked, long bodyMs, List<Long> visits) throws Exception {
        lock.lock(LEASE_MS, TimeUnit.MILLISECONDS);
        long entered = now();
        if (bodyMs > 0) {
            Thread.sleep(bodyMs);
        }
        long left = now();
        lock.unlock();
        visits.addAll(List.of(asked, entered, left));
    }

    private String cancel(String[] order, boolean timed) throws Exception {
        long pause = Long.parseLong(order[2]);
        int cancelled = 0;
        for (int i = 3; i < order.length; i++) {
            RLock lock = client.getLock(order[i]);
            long at = System.nanoTime() + pause * (i - 3);
            RFuture<Boolean> asking =
                    timed ? lock.tryLockAsync(0, LEASE_MS, TimeUnit.MILLISECONDS) : lock.tryLockAsync();
            while (System.nanoTime() < at && !asking.isDone()) {
                Thread.onSpinWait();
            }
            if (asking.cancel(true)) {
                cancelled++;
            } else if (asking.get()) {
                lock.unlock();
            }
        }
        return "{\"cancelled\":" + cancelled + "}";
    }

    private RLock lock(String key, boolean fair) {
        return fair ? client.getFairLock(key) : client.getLock(key);
    }

    private static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }
}
