package mqstore.oracle;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;

/** Lets the original store build consume queues and index from a commit log, in place, and times load and dispatch apart. */
final class Dispatch {
    private Dispatch() { }

    /** Removes everything a store derives from its log. */
    static void removeDerived(Path root) throws IOException {
        for (String name : new String[] {"consumequeue", "consumequeue_ext", "consumequeue_rocksdb", "rocksdbstore", "batchconsumequeue", "index", "checkpoint", "abort"}) {
            Oracle.delete(root.resolve(name));
        }
    }

    /**
     * Loads, starts, waits until the last record is dispatched (5.3.x does most of that while it loads). The dispatch time ends when the reput service has passed the last
     * record, not when start() returns: start() looks only once a second.
     */
    static Map<String, Object> run(Path root, Properties props, boolean shutdown) throws Exception {
        Map<String, Object> m = new LinkedHashMap<>();
        long t0 = System.nanoTime();
        StoreHandle handle = new StoreHandle(root, props);
        boolean ok = handle.load();
        long t1 = System.nanoTime();
        m.put("load_ok", ok);
        m.put("load_seconds", (t1 - t0) / 1e9);
        if (!ok) {
            handle.store.shutdown();
            return m;
        }
        long[] done = {0};
        Thread watch = new Thread(() -> {
            // before start() has set the starting point everything counts as being behind
            while (handle.store.dispatchBehindBytes() > 0) {
                try {
                    Thread.sleep(1);
                } catch (InterruptedException e) {
                    return;
                }
            }
            done[0] = System.nanoTime();
        });
        watch.setDaemon(true);
        long t2 = System.nanoTime();
        watch.start();
        handle.start();
        handle.waitDispatched(600_000);
        watch.join();
        m.put("dispatch_seconds", (done[0] - t2) / 1e9);
        m.put("total_seconds", (t1 - t0 + done[0] - t2) / 1e9);
        m.put("min_phy_offset", handle.store.getMinPhyOffset());
        m.put("max_phy_offset", handle.store.getMaxPhyOffset());
        long entries = 0;
        for (TreeMap<Integer, Object> queues : handle.queues().values()) {
            for (Object q : queues.values()) {
                entries += ((Number) Reflect.call(q, "getMaxOffsetInQueue")).longValue() - ((Number) Reflect.call(q, "getMinOffsetInQueue")).longValue();
            }
        }
        m.put("entries", entries);
        List<Map<String, Object>> index = new Report(handle).indexFiles();
        m.put("index_files", index);
        Set<Object> names = new HashSet<>();
        for (Map<String, Object> f : index) {
            if (!names.add(f.get("name"))) {
                m.put("index_names_collided", true);
            }
        }
        if (shutdown) {
            Thread.sleep(50);
            handle.store.shutdown();
            m.put("abort_left", Files.exists(root.resolve("abort")));
        }
        return m;
    }
}
