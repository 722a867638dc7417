import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;

/**
 * A service that locks with Redisson. The arguments are the watchdog's lease in ms; `single`, `cluster` or the name of a
 * group that Sentinels watch; and the URLs of the server, of servers of the cluster, or of the Sentinels. Reads one order
 * per line, and answers each order with one line when the order is carried out. Each named thread carries out its orders
 * one after another.
 *
 * <pre>
 * THREAD lock NAME [LEASE_MS]         acquires the lock, which the watchdog renews if LEASE_MS is missing
 * THREAD try NAME WAIT_MS LEASE_MS    waits for WAIT_MS at most; answers whether it got the lock
 * THREAD spin NAME LEASE_MS           acquires the lock as a spin lock
 * THREAD fenced NAME LEASE_MS         acquires the lock as a fenced lock; answers its fencing token
 * THREAD unlock NAME                  unlocks the lock
 * THREAD unspin NAME                  unlocks the spin lock
 * THREAD unfence NAME                 unlocks the fenced lock
 * THREAD count NAME                   answers how many times the thread holds the lock
 * THREAD force NAME                   unlocks the lock, whoever holds it; answers whether the lock was held
 * THREAD visit NAME COUNTER TIMES MS  locks TIMES times for MS each; answers how often COUNTER showed another holder
 * THREAD poll NAME TIMES MS LEASE_MS  tries until it has locked TIMES times for MS each, and does not listen for releases;
 *                                     answers when it entered and left, in ns of the system's monotonic clock
 * </pre>
 */
public final class Service {
    private final RedissonClient client;

    private Service(RedissonClient client) {
        this.client = client;
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(args[0]));
        String[] addresses = Arrays.copyOfRange(args, 2, args.length);
        switch (args[1]) {
            case "single" -> config.useSingleServer().setAddress(addresses[0]);
            case "cluster" -> {
                ClusterServersConfig servers = config.useClusterServers();
                servers.addNodeAddress(addresses).setScanInterval(500);
            }
            default -> {
                SentinelServersConfig servers = config.useSentinelServers();
                servers.setMasterName(args[1]).addSentinelAddress(addresses).setScanInterval(500);
            }
        }
        RedissonClient client = Redisson.create(config);
        Service service = new Service(client);
        Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] order = line.split(" ");
            threads.computeIfAbsent(order[0], name -> Executors.newSingleThreadExecutor()).submit(() -> {
                Object answer;
                try {
                    answer = service.obey(order);
                } catch (Exception error) {
                    answer = error.getClass().getSimpleName();
                }
                System.out.println(order[0] + " " + answer);
            });
        }
        System.exit(0);
    }

    private Object obey(String[] order) throws Exception {
        String name = order[2];
        RLock lock = client.getLock(name);
        switch (order[1]) {
            case "lock" -> {
                if (order.length > 3) {
                    lock.lock(Long.parseLong(order[3]), TimeUnit.MILLISECONDS);
                } else {
                    lock.lock();
                }
                return "in";
            }
            case "try" -> {
                return lock.tryLock(Long.parseLong(order[3]), Long.parseLong(order[4]), TimeUnit.MILLISECONDS);
            }
            case "spin" -> {
                client.getSpinLock(name).lock(Long.parseLong(order[3]), TimeUnit.MILLISECONDS);
                return "in";
            }
            case "fenced" -> {
                return client.getFencedLock(name).lockAndGetToken(Long.parseLong(order[3]), TimeUnit.MILLISECONDS);
            }
            case "unlock" -> {
                lock.unlock();
                return "out";
            }
            case "unspin" -> {
                client.getSpinLock(name).unlock();
                return "out";
            }
            case "unfence" -> {
                client.getFencedLock(name).unlock();
                return "out";
            }
            case "count" -> {
                return lock.getHoldCount();
            }
            case "force" -> {
                return lock.forceUnlock();
            }
            case "visit" -> {
                int crowded = 0;
                for (int i = Integer.parseInt(order[4]); i > 0; i--) {
                    lock.lock(20, TimeUnit.SECONDS);
                    if (client.getAtomicLong(order[3]).incrementAndGet() != 1) {
                        crowded++;
                    }
                    Thread.sleep(Long.parseLong(order[5]));
                    client.getAtomicLong(order[3]).decrementAndGet();
                    lock.unlock();
                }
                return crowded;
            }
            case "poll" -> {
                List<String> visits = new ArrayList<>();
                while (visits.size() < Integer.parseInt(order[3])) {
                    try {
                        if (!lock.tryLock(0, Long.parseLong(order[5]), TimeUnit.MILLISECONDS)) {
                            Thread.sleep(1);
                            continue;
                        }
                        long entered = System.nanoTime();
                        Thread.sleep(Long.parseLong(order[4]));
                        visits.add(entered + "-" + System.nanoTime());
                        lock.unlock();
                    } catch (RedisException | IllegalMonitorStateException error) {
                        // Redisson may give up a command, or repeat an unlock until the lease has ended. The visit is
                        // already recorded. If the lock is still held, its lease ends by itself.
                        System.err.println(order[0] + ": " + error);
                    }
                }
                return String.join(",", visits);
            }
            default -> throw new IllegalArgumentException(order[1]);
        }
    }
}
