package mqstore.oracle;

import java.io.Writer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.SplittableRandom;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * A store in use: opens a directory in place, recovers it, and puts messages at a rate until standard input ends or the process is killed.
 * Prints where the log ends after the start, then each message that was acknowledged, at once.
 */
final class Live {
    private static final InetSocketAddress BORN = new InetSocketAddress("10.1.2.3", 40000);
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    private Live() { }

    /** rate: messages a second. Message i of a run goes to topic live-(i mod 3), queue i mod 2; its body has up to 900 bytes. */
    static int run(Path root, Properties props, int rate, Writer out) throws Exception {
        Files.createDirectories(root);
        StoreHandle handle = new StoreHandle(root, props);
        if (!handle.load()) {
            throw new IllegalStateException("load refused");
        }
        handle.start();
        Map<String, Object> started = new LinkedHashMap<>();
        started.put("started", handle.store.getMaxPhyOffset());
        say(out, started);
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // until the one who started us closes it
                }
            } catch (java.io.IOException ignored) {
                // closed as well
            }
        });
        input.setDaemon(true);
        input.start();
        SplittableRandom random = new SplittableRandom(started.hashCode());
        long begin = System.nanoTime();
        for (long i = 0; input.isAlive(); i++) {
            long early = begin + i * 1_000_000_000L / rate - System.nanoTime();
            if (early > 1_000_000) {
                Thread.sleep(early / 1_000_000);
            }
            put(handle, i, random, out);
        }
        handle.waitDispatched(60_000);
        handle.store.shutdown();
        return 0;
    }

    private static void put(StoreHandle handle, long i, SplittableRandom random, Writer out) throws Exception {
        MessageExt m = (MessageExt) Reflect.make(Reflect.either("org.apache.rocketmq.common.message.MessageExtBrokerInner",
            "org.apache.rocketmq.store.MessageExtBrokerInner"));
        m.setTopic("live-" + i % 3);
        m.setQueueId((int) (i % 2));
        m.setBornTimestamp(handle.clock.now());
        m.setBornHost(BORN);
        m.setStoreHost(HOST);
        m.setKeys("run-" + i);
        m.setBody("x".repeat(random.nextInt(900)).getBytes(StandardCharsets.US_ASCII));
        Reflect.call(m, "setPropertiesString", MessageDecoder.messageProperties2String(m.getProperties()));
        PutMessageResult result = (PutMessageResult) Reflect.call(handle.store, "putMessage", m);
        if (!result.isOk()) {
            return;
        }
        Map<String, Object> acknowledged = new LinkedHashMap<>();
        acknowledged.put("topic", m.getTopic());
        acknowledged.put("queue_id", m.getQueueId());
        acknowledged.put("queue_offset", result.getAppendMessageResult().getLogicsOffset());
        acknowledged.put("physical_offset", result.getAppendMessageResult().getWroteOffset());
        say(out, acknowledged);
    }

    private static void say(Writer out, Map<String, Object> line) throws Exception {
        Oracle.line(out, line);
        out.flush();
    }
}
