package mqstore.oracle;

import java.io.Writer;
import java.lang.reflect.Constructor;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * Putting, getting and opening with the real store, timed.
 *
 * put            --messages N [--warm-up N] [--body 1024] [--threads 1] [--flush async|sync] [--batch 1]
 *                single puts (or a producer's batches of that many) of one body and one KEYS each; message objects and property texts
 *                are made inside the timed loop, as a broker makes them from what came over the wire
 * get            --count N [--rounds 5] [--messages N of the store, as made by gen]      32 messages a call, and the same with decoding
 * fill-and-halt  --messages N [--body 1024]        writes, lets dispatch catch up, dies without shutdown
 * open           [--rounds 1] [--tmp DIR]          load and start of a copy made for each round
 */
final class BenchEngine {
    private static final InetSocketAddress BORN = new InetSocketAddress("10.1.2.3", 40000);
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final int TOPICS = 4;
    private static final int QUEUES = 8;

    /** Puts one message, or one batch, into a store whose classes moved between the versions. */
    private interface Put {
        PutMessageResult of(MessageExt message) throws Exception;
    }

    private final StoreHandle handle;
    private final Constructor<?> make;
    private final java.lang.invoke.MethodHandle setText;
    private final java.lang.invoke.MethodHandle put;
    private final byte[][] bodies;
    private final String[] topics = new String[TOPICS];

    private BenchEngine(StoreHandle handle, int size) throws Exception {
        this.handle = handle;
        Class<?> type = Reflect.either("org.apache.rocketmq.common.message.MessageExtBrokerInner", "org.apache.rocketmq.store.MessageExtBrokerInner");
        make = type.getDeclaredConstructor();
        java.lang.invoke.MethodHandles.Lookup lookup = java.lang.invoke.MethodHandles.lookup();
        setText = lookup.unreflect(type.getMethod("setPropertiesString", String.class))
            .asType(java.lang.invoke.MethodType.methodType(void.class, MessageExt.class, String.class));
        put = lookup.unreflect(DefaultMessageStore.class.getMethod("putMessage", type))
            .asType(java.lang.invoke.MethodType.methodType(PutMessageResult.class, DefaultMessageStore.class, MessageExt.class));
        SplittableRandom random = new SplittableRandom(42);
        bodies = new byte[1024][];
        for (int i = 0; i < bodies.length; i++) {
            bodies[i] = Bench.body(i, size, random, new StringBuilder(size + 200));
        }
        for (int i = 0; i < TOPICS; i++) {
            topics[i] = "bench-" + i;
        }
    }

    private static StoreHandle opened(Path store, Properties props) throws Exception {
        Files.createDirectories(store);
        StoreHandle handle = new StoreHandle(store, props);
        if (!handle.load()) {
            throw new IllegalStateException("load refused");
        }
        handle.start();
        return handle;
    }

    private void envelope(MessageExt m, int i) {
        m.setTopic(topics[i % TOPICS]);
        m.setQueueId(i / TOPICS % QUEUES);
        m.setBornTimestamp(System.currentTimeMillis());
        m.setBornHost(BORN);
        m.setStoreHost(HOST);
    }

    private void single(int i) throws Throwable {
        MessageExt m = (MessageExt) make.newInstance();
        envelope(m, i);
        m.setBody(bodies[i % bodies.length]);
        m.setKeys(Bench.key(i));
        setText.invokeExact(m, MessageDecoder.messageProperties2String(m.getProperties()));
        retried(i, m, message -> {
            try {
                return (PutMessageResult) put.invokeExact(handle.store, message);
            } catch (Exception e) {
                throw e;
            } catch (Throwable t) {
                throw new IllegalStateException(t);
            }
        });
    }

    private void batch(int first, byte[] encoded) throws Exception {
        MessageExtBatch m = new MessageExtBatch();
        envelope(m, first);
        MessageAccessor.setProperties(m, new java.util.HashMap<>());
        m.setBody(encoded);
        if (handle.five) {
            Reflect.call(m, "setPropertiesString", "");
        }
        retried(first, m, message -> handle.store.putMessages((MessageExtBatch) message));
    }

    private static void retried(int i, MessageExt m, Put how) throws Exception {
        while (true) {
            PutMessageResult r = how.of(m);
            if (r.isOk()) {
                return;
            }
            // a busy page cache refuses for a moment; anything else would repeat for ever and is shown
            System.err.println("message " + i + ": " + r.getPutMessageStatus());
            Thread.sleep(200);
        }
    }

    private void range(int from, int to, byte[][] encoded, int batch) throws Throwable {
        if (batch == 1) {
            for (int i = from; i < to; i++) {
                single(i);
            }
            return;
        }
        for (int i = from; i < to; i += batch) {
            batch(i, encoded[i / batch % encoded.length]);
        }
    }

    private void onThreads(int threads, int from, int to, byte[][] encoded, int batch) throws Throwable {
        if (threads == 1) {
            range(from, to, encoded, batch);
            return;
        }
        CountDownLatch done = new CountDownLatch(threads);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        int share = (to - from) / threads / batch * batch;
        for (int t = 0; t < threads; t++) {
            int low = from + t * share;
            int high = t == threads - 1 ? to : low + share;
            new Thread(() -> {
                try {
                    range(low, high, encoded, batch);
                } catch (Throwable e) {
                    failed.set(e);
                } finally {
                    done.countDown();
                }
            }).start();
        }
        done.await();
        if (failed.get() != null) {
            throw failed.get();
        }
    }

    /** What producers send as batches: made beforehand, as it reaches a broker over the wire. */
    private byte[][] encodedBatches(int batch) {
        byte[][] encoded = new byte[batch == 1 ? 0 : 64][];
        for (int b = 0; b < encoded.length; b++) {
            List<Message> parts = new ArrayList<>();
            for (int k = 0; k < batch; k++) {
                int i = b * batch + k;
                Message part = new Message(topics[b % TOPICS], bodies[i % bodies.length]);
                part.setKeys(Bench.key(i));
                parts.add(part);
            }
            encoded[b] = MessageDecoder.encodeMessages(parts);
        }
        return encoded;
    }

    static void put(Path store, Properties props, Map<String, String> opt, Writer out) throws Exception {
        int messages = Bench.number(opt, "messages", 200_000);
        int warm = Bench.number(opt, "warm-up", messages / 4);
        int size = Bench.number(opt, "body", 1024);
        int threads = Bench.number(opt, "threads", 1);
        int batch = Bench.number(opt, "batch", 1);
        String flush = opt.getOrDefault("flush", "async");
        props.setProperty("flushDiskType", flush.equals("sync") ? "SYNC_FLUSH" : "ASYNC_FLUSH");
        StoreHandle handle = opened(store, props);
        BenchEngine bench = new BenchEngine(handle, size);
        byte[][] encoded = bench.encodedBatches(batch);
        double put;
        double dispatched;
        long bytes;
        try {
            bench.onThreads(threads, 0, warm / batch * batch, encoded, batch);
            dispatchedAll(handle);
            long low = handle.store.getMaxPhyOffset();
            long t0 = System.nanoTime();
            bench.onThreads(threads, warm / batch * batch, warm / batch * batch + messages / batch * batch, encoded, batch);
            put = (System.nanoTime() - t0) / 1e9;
            dispatchedAll(handle);
            dispatched = (System.nanoTime() - t0) / 1e9;
            bytes = handle.store.getMaxPhyOffset() - low;
        } catch (Exception e) {
            throw e;
        } catch (Throwable t) {
            throw new IllegalStateException(t);
        }
        handle.store.shutdown();
        int done = messages / batch * batch;
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("messages", done);
        m.put("body", size);
        m.put("threads", threads);
        m.put("flush", flush);
        m.put("batch", batch);
        m.put("bytes", bytes);
        m.put("put_seconds", put);
        m.put("dispatched_seconds", dispatched);
        m.put("messages_per_second", done / put);
        m.put("dispatched_per_second", done / dispatched);
        Oracle.line(out, m);
    }

    private static void dispatchedAll(StoreHandle handle) {
        while (handle.store.dispatchBehindBytes() > 0) {
            Thread.onSpinWait();
        }
    }

    static void get(Path store, Properties props, Map<String, String> opt, Writer out) throws Exception {
        int count = Bench.number(opt, "count", 2000);
        int rounds = Bench.number(opt, "rounds", 5);
        StoreHandle handle = opened(store, props);
        long last = Long.MAX_VALUE;
        for (int q = 0; q < TOPICS * QUEUES; q++) {
            last = Math.min(last, handle.store.getMaxOffsetInQueue("bench-" + q % TOPICS, q / TOPICS));
        }
        if (last < 32) {
            throw new IllegalStateException("a queue has only " + last + " messages; make the store with gen and more of them");
        }
        SplittableRandom random = new SplittableRandom(7);
        long[] alone = new long[count];
        long[] decoded = new long[count];
        long seen = 0;
        long bytes = 0;
        for (int round = 0; round < rounds; round++) {
            seen = 0;
            bytes = 0;
            for (int way = 0; way < 2; way++) {
                for (int k = 0; k < count; k++) {
                    int q = random.nextInt(TOPICS * QUEUES);
                    long at = random.nextLong(last - 31);
                    String topic = "bench-" + q % TOPICS;
                    long t0 = System.nanoTime();
                    GetMessageResult r = handle.store.getMessage("bench", topic, q / TOPICS, at, 32, null);
                    if (way == 0) {
                        alone[k] = System.nanoTime() - t0;
                        bytes += r.getBufferTotalSize();
                    } else {
                        for (ByteBuffer b : r.getMessageBufferList()) {
                            MessageExt m = MessageDecoder.decode(b, true, true);
                            seen += m.getQueueOffset() >= at ? 1 : 0;
                        }
                        decoded[k] = System.nanoTime() - t0;
                    }
                    r.release();
                }
            }
        }
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("count", count);
        m.put("messages_per_get", seen / (double) count);
        m.put("bytes_per_get", bytes / (double) count);
        Bench.percentiles(m, "get_us", alone);
        Bench.percentiles(m, "get_decode_us", decoded);
        Oracle.line(out, m);
    }

    static void fillAndHalt(Path store, Properties props, Map<String, String> opt, Writer out) throws Exception {
        int messages = Bench.number(opt, "messages", 880_000);
        StoreHandle handle = opened(store, props);
        BenchEngine bench = new BenchEngine(handle, Bench.number(opt, "body", 1024));
        try {
            bench.range(0, messages, new byte[0][], 1);
        } catch (Throwable t) {
            throw new IllegalStateException(t);
        }
        dispatchedAll(handle);
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("messages", messages);
        m.put("bytes", handle.store.getMaxPhyOffset());
        Oracle.line(out, m);
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void open(Path store, Properties props, Map<String, String> opt, Writer out) throws Exception {
        for (int round = 0; round < Bench.number(opt, "rounds", 1); round++) {
            Path copy = Files.createTempDirectory(Paths.get(opt.getOrDefault("tmp", System.getProperty("java.io.tmpdir"))), "bench-open-");
            try {
                StoreHandle.copyTree(store, copy);
                long t0 = System.nanoTime();
                StoreHandle handle = new StoreHandle(copy, props);
                boolean ok = handle.load();
                long t1 = System.nanoTime();
                handle.start();
                long t2 = System.nanoTime();
                Map<String, Object> m = new LinkedHashMap<>();
                m.put("round", round);
                m.put("load_ok", ok);
                m.put("bytes", handle.store.getMaxPhyOffset());
                m.put("load_seconds", (t1 - t0) / 1e9);
                m.put("start_seconds", (t2 - t1) / 1e9);
                m.put("seconds", (t2 - t0) / 1e9);
                Oracle.line(out, m);
                out.flush();
                handle.store.shutdown();
            } finally {
                Oracle.delete(copy);
            }
        }
    }
}
