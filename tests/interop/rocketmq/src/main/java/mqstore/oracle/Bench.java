package mqstore.oracle;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintStream;
import java.io.Writer;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.SplittableRandom;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * The real store as the peer of our benchmarks. MODE STORE [-Cname=value]... [--option value]...
 *
 * gen       --messages N --keys s1|s2 [--body 1024] [--topics 4] [--queues 8]   writes a store through the real put path
 * dispatch  [--rounds 3]                                  removes queues and index of STORE, builds them again; prints each round
 * scan      [--rounds 3]                                  walks all records: checked with body CRC, checked without, decoded; prints seconds of each
 * query     [--count 100000] [--rounds 6] --messages N [--topics 4]        times key queries, microseconds
 * put, get, fill-and-halt, open                            what a writable store does: see BenchEngine
 *
 * Message i goes to topic bench-(i mod topics), queue (i / topics) mod queues; KEYS is order-%09d of i, TAGS is Tag(i mod 5); with s2 it also has
 * a UNIQ_KEY of 32 hex digits: 0A010203, then i as 24 digits.
 */
public final class Bench {
    private static final int BLANK = 0xCBD43194;

    private Bench() { }

    public static void main(String[] args) throws Exception {
        Writer out = new OutputStreamWriter(new FileOutputStream(FileDescriptor.out), StandardCharsets.UTF_8);
        System.setOut(new PrintStream(new FileOutputStream(FileDescriptor.err), true));
        int code = 0;
        try {
            Properties props = new Properties();
            Map<String, String> opt = new HashMap<>();
            for (int i = 2; i < args.length; i++) {
                if (args[i].startsWith("-C")) {
                    int eq = args[i].indexOf('=');
                    props.setProperty(args[i].substring(2, eq), args[i].substring(eq + 1));
                } else {
                    opt.put(args[i].substring(2), args[++i]);
                }
            }
            Path store = Paths.get(args[1]).toAbsolutePath();
            switch (args[0]) {
                case "gen":
                    gen(store, props, opt, out);
                    break;
                case "dispatch":
                    for (int round = 0; round < number(opt, "rounds", 3); round++) {
                        Dispatch.removeDerived(store);
                        Map<String, Object> m = Dispatch.run(store, props, true);
                        m.put("round", round);
                        Oracle.line(out, m);
                        out.flush();
                    }
                    break;
                case "scan":
                    scan(store, props, opt, out);
                    break;
                case "query":
                    query(store, props, opt, out);
                    break;
                case "put":
                    BenchEngine.put(store, props, opt, out);
                    break;
                case "get":
                    BenchEngine.get(store, props, opt, out);
                    break;
                case "fill-and-halt":
                    BenchEngine.fillAndHalt(store, props, opt, out);
                    break;
                case "open":
                    BenchEngine.open(store, props, opt, out);
                    break;
                default:
                    throw new IllegalArgumentException("mode " + args[0]);
            }
        } catch (Throwable t) {
            t.printStackTrace();
            code = 2;
        }
        out.flush();
        Runtime.getRuntime().halt(code);
    }

    static int number(Map<String, String> opt, String name, int dflt) {
        return opt.containsKey(name) ? Integer.parseInt(opt.get(name)) : dflt;
    }

    static String key(int i) {
        return "order-" + String.valueOf(1_000_000_000 + i).substring(1);
    }

    static String uniqKey(int i) {
        return "0A010203" + "000000000000000" + String.valueOf(1_000_000_000 + i).substring(1);
    }

    private static final String[] WORDS = {"paid", "shipped", "returned", "express", "standard", "Berlin", "Hangzhou", "Lagos", "Lima", "gift", "invoice", "cash"};

    /** An order as JSON text, cut or filled to exactly size bytes; numbers and words differ from message to message. */
    static byte[] body(int i, int size, SplittableRandom random, StringBuilder text) {
        text.setLength(0);
        text.append("{\"order\":\"").append(key(i)).append("\",\"customer\":").append(random.nextInt(10_000_000)).append(",\"lines\":[");
        while (text.length() < size) {
            text.append("{\"sku\":\"").append(Long.toHexString(random.nextLong())).append("\",\"qty\":").append(random.nextInt(9) + 1).append(",\"price\":")
                .append(random.nextInt(100_000)).append(",\"note\":\"").append(WORDS[random.nextInt(WORDS.length)]).append(' ')
                .append(WORDS[random.nextInt(WORDS.length)]).append("\"},");
        }
        text.setLength(size);
        return text.toString().getBytes(StandardCharsets.ISO_8859_1);
    }

    private static void gen(Path store, Properties props, Map<String, String> opt, Writer out) throws Exception {
        int messages = number(opt, "messages", 1_000_000);
        int size = number(opt, "body", 1024);
        int topics = number(opt, "topics", 4);
        int queues = number(opt, "queues", 8);
        boolean two = "s2".equals(opt.get("keys"));
        Files.createDirectories(store);
        StoreHandle handle = new StoreHandle(store, props);
        if (!handle.load()) {
            throw new IllegalStateException("load refused");
        }
        handle.start();
        Class<?> type = Reflect.either("org.apache.rocketmq.common.message.MessageExtBrokerInner", "org.apache.rocketmq.store.MessageExtBrokerInner");
        Constructor<?> make = type.getDeclaredConstructor();
        Method setText = type.getMethod("setPropertiesString", String.class);
        Method put = handle.store.getClass().getMethod("putMessage", type);
        InetSocketAddress born = new InetSocketAddress("10.1.2.3", 40000);
        InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        SplittableRandom random = new SplittableRandom(42);
        StringBuilder text = new StringBuilder(size + 200);
        long t0 = System.nanoTime();
        for (int i = 0; i < messages; i++) {
            MessageExt m = (MessageExt) make.newInstance();
            m.setTopic("bench-" + i % topics);
            m.setQueueId(i / topics % queues);
            m.setBornTimestamp(System.currentTimeMillis());
            m.setBornHost(born);
            m.setStoreHost(host);
            m.setBody(body(i, size, random, text));
            m.setKeys(key(i));
            m.setTags("Tag" + i % 5);
            if (two) {
                m.getProperties().put("UNIQ_KEY", uniqKey(i));
            }
            setText.invoke(m, MessageDecoder.messageProperties2String(m.getProperties()));
            while (true) {
                PutMessageResult r = (PutMessageResult) put.invoke(handle.store, m);
                if (r.isOk()) {
                    break;
                }
                // a busy page cache refuses for a moment; anything else would repeat for ever and is shown
                System.err.println("message " + i + ": " + r.getPutMessageStatus());
                Thread.sleep(200);
            }
        }
        double seconds = (System.nanoTime() - t0) / 1e9;
        handle.waitDispatched(600_000);
        Thread.sleep(50);
        long bytes = handle.store.getMaxPhyOffset();
        handle.store.shutdown();
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("messages", messages);
        m.put("bytes", bytes);
        m.put("put_seconds", seconds);
        Oracle.line(out, m);
    }

    /** The walks a broker makes over its log: in recovery (with and without CRC), and to hand out messages (decoded with body). */
    private static void scan(Path store, Properties props, Map<String, String> opt, Writer out) throws Exception {
        props.setProperty("checkCRCOnRecover", "false");
        StoreHandle handle = new StoreHandle(store, props);
        if (!handle.load()) {
            throw new IllegalStateException("load refused");
        }
        Object log = handle.store.getCommitLog();
        Method check = Arrays.stream(log.getClass().getMethods())
            .filter(m -> m.getName().equals("checkMessageAndReturnSize") && m.getParameterCount() == (handle.five ? 4 : 3)).findFirst().get();
        long low = handle.store.getMinPhyOffset();
        long high = handle.store.getMaxPhyOffset();
        for (int round = 0; round < number(opt, "rounds", 3); round++) {
            Map<String, Object> m = new LinkedHashMap<>();
            m.put("round", round);
            m.put("bytes", high - low);
            for (String way : new String[] {"crc", "headers", "decode"}) {
                long t0 = System.nanoTime();
                long records = 0;
                long at = low;
                while (at < high) {
                    SelectMappedBufferResult part = handle.store.getCommitLog().getData(at, at == 0);
                    ByteBuffer buffer = part.getByteBuffer();
                    int done = 0;
                    boolean next = false;
                    while (done < part.getSize()) {
                        buffer.position(done);
                        int size = buffer.getInt(done);
                        if (buffer.getInt(done + 4) == BLANK) {
                            next = true;
                            break;
                        }
                        boolean good = way.equals("decode") ? MessageDecoder.decode(buffer, true, true) != null
                            : ((DispatchRequest) check.invoke(log, arguments(buffer, way.equals("crc"), check.getParameterCount()))).isSuccess();
                        if (!good) {
                            throw new IllegalStateException("no sound record at " + (at + done));
                        }
                        done += size;
                        records++;
                    }
                    at = next ? handle.store.getCommitLog().rollNextFile(at + done) : at + done;
                    part.release();
                }
                m.put(way + "_seconds", (System.nanoTime() - t0) / 1e9);
                m.put("records", records);
            }
            Oracle.line(out, m);
            out.flush();
        }
    }

    private static Object[] arguments(ByteBuffer buffer, boolean crc, int count) {
        return count == 4 ? new Object[] {buffer, crc, false, crc} : new Object[] {buffer, crc, crc};
    }

    private static void query(Path store, Properties props, Map<String, String> opt, Writer out) throws Exception {
        int count = number(opt, "count", 100_000);
        int rounds = number(opt, "rounds", 6);
        int messages = number(opt, "messages", 1_000_000);
        int topics = number(opt, "topics", 4);
        if (!props.containsKey("checkCRCOnRecover")) {
            props.setProperty("checkCRCOnRecover", "false");
        }
        StoreHandle handle = new StoreHandle(store, props);
        if (!handle.load()) {
            throw new IllegalStateException("load refused");
        }
        SplittableRandom random = new SplittableRandom(7);
        List<String[]> keys = new ArrayList<>();
        for (int k = 0; k < count; k++) {
            int i = random.nextInt(messages);
            keys.add(new String[] {"bench-" + i % topics, key(i)});
        }
        org.apache.rocketmq.store.index.IndexService index = (org.apache.rocketmq.store.index.IndexService) handle.indexService();
        long[] offsets = new long[count];
        long[] found = new long[count];
        long[] decoded = new long[count];
        int hits = 0;
        for (int round = 0; round < rounds; round++) {
            hits = 0;
            // three passes, so that no call finds in the processor's caches what the call before it fetched for the same key
            for (int k = 0; k < count; k++) {
                String[] q = keys.get(k);
                long t0 = System.nanoTime();
                index.queryOffset(q[0], q[1], 32, 0, Long.MAX_VALUE);
                offsets[k] = System.nanoTime() - t0;
            }
            for (int k = 0; k < count; k++) {
                String[] q = keys.get(k);
                long t0 = System.nanoTime();
                QueryMessageResult r = handle.store.queryMessage(q[0], q[1], 32, 0, Long.MAX_VALUE);
                found[k] = System.nanoTime() - t0;
                r.release();
            }
            for (int k = 0; k < count; k++) {
                String[] q = keys.get(k);
                long t0 = System.nanoTime();
                QueryMessageResult r = handle.store.queryMessage(q[0], q[1], 32, 0, Long.MAX_VALUE);
                for (ByteBuffer b : r.getMessageBufferList()) {
                    MessageExt m = MessageDecoder.decode(b, true, true);
                    hits += q[1].equals(m.getKeys()) ? 1 : 0;
                }
                decoded[k] = System.nanoTime() - t0;
                r.release();
            }
        }
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("count", count);
        m.put("hits", hits);
        percentiles(m, "query_offset_us", offsets);
        percentiles(m, "query_message_us", found);
        percentiles(m, "query_decode_us", decoded);
        Oracle.line(out, m);
    }

    static void percentiles(Map<String, Object> m, String name, long[] nanos) {
        Arrays.sort(nanos);
        m.put(name + "_p50", nanos[nanos.length / 2] / 1e3);
        m.put(name + "_p95", nanos[nanos.length * 95 / 100] / 1e3);
    }
}
