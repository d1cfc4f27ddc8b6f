package mqstore.oracle;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Load from unmodified clients, for benchmarks/brokering.py. Reads commands, one a line, and answers each with one JSON line:
 *
 * first HOST:PORT                          sends until a message is accepted; when that was, ns since the epoch
 * produce HOST:PORT THREADS WARM MEASURED  sync sends of 1 KiB by so many threads; seconds to warm up, seconds measured
 * fill HOST:PORT TOPIC COUNT               COUNT messages of 1 KiB with KEYS order-0 and on, by one thread in batches of 32
 * consume HOST:PORT TOPIC COUNT WARM       a push consumer drains the topic; the first WARM messages are not measured
 * query HOST:PORT TOPIC COUNT WARM ROUNDS  a message by its key; median round trip
 */
public final class Load {
    private static final int SIZE = 1024;
    private static int made;

    private Load() { }

    private static DefaultMQProducer producer(String address) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("load_producers");
        p.setNamesrvAddr(address);
        p.setInstanceName("load-" + made++);
        p.setSendMsgTimeout(10_000);
        p.start();
        return p;
    }

    private static byte[] body(int number) {
        byte[] body = new byte[SIZE];
        byte[] text = ("{\"order\":\"order-" + number + "\",\"note\":\"").getBytes(StandardCharsets.UTF_8);
        Arrays.fill(body, (byte) ('a' + number % 26));
        System.arraycopy(text, 0, body, 0, text.length);
        return body;
    }

    private static String first(String address) throws Exception {
        DefaultMQProducer p = producer(address);
        p.setRetryTimesWhenSendFailed(0);
        long end = System.nanoTime() + 60_000_000_000L;
        while (true) {
            try {
                if (p.send(new Message("load-first", body(0))).getSendStatus() == SendStatus.SEND_OK) {
                    java.time.Instant now = java.time.Instant.now();
                    p.shutdown();
                    return "{\"accepted\":" + (now.getEpochSecond() * 1_000_000_000L + now.getNano()) + "}";
                }
            } catch (Exception notYet) {
                if (System.nanoTime() > end) {
                    throw notYet;
                }
                Thread.sleep(10);
            }
        }
    }

    private static String produce(String address, int threads, double warm, double measured) throws Exception {
        DefaultMQProducer p = producer(address);
        AtomicLong sent = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        AtomicBoolean stop = new AtomicBoolean();
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            byte[] body = body(i);
            Thread worker = new Thread(() -> {
                while (!stop.get()) {
                    try {
                        if (p.send(new Message("load-produce", "t", body)).getSendStatus() != SendStatus.SEND_OK) {
                            failed.incrementAndGet();
                        }
                        sent.incrementAndGet();
                    } catch (Exception e) {
                        failed.incrementAndGet();
                    }
                }
            });
            workers.add(worker);
            worker.start();
        }
        Thread.sleep((long) (warm * 1000));
        long before = sent.get();
        long start = System.nanoTime();
        Thread.sleep((long) (measured * 1000));
        long count = sent.get() - before;
        double seconds = (System.nanoTime() - start) / 1e9;
        stop.set(true);
        for (Thread worker : workers) {
            worker.join();
        }
        p.shutdown();
        return String.format(Locale.ROOT, "{\"messages\":%d,\"seconds\":%.6f,\"failed\":%d}", count, seconds, failed.get());
    }

    private static String fill(String address, String topic, int count) throws Exception {
        DefaultMQProducer p = producer(address);
        p.send(new Message(topic, "t", "order-0", body(0)));
        for (int at = 1; at < count; at += 32) {
            List<Message> batch = new ArrayList<>();
            for (int i = at; i < Math.min(count, at + 32); i++) {
                batch.add(new Message(topic, "t", "order-" + i, body(i)));
            }
            p.send(batch);
        }
        p.shutdown();
        return "{\"messages\":" + count + "}";
    }

    private static String consume(String address, String topic, int count, int warm) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer("load_consumers");
        c.setNamesrvAddr(address);
        c.setInstanceName("load-" + made++);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(topic, "*");
        AtomicLong got = new AtomicLong();
        long[] times = new long[2];
        CountDownLatch all = new CountDownLatch(1);
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long after = got.addAndGet(messages.size());
            if (after == warm) {
                times[0] = System.nanoTime();
            }
            if (after == count) {
                times[1] = System.nanoTime();
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        boolean done = all.await(120, java.util.concurrent.TimeUnit.SECONDS);
        c.shutdown();
        if (!done) {
            throw new IllegalStateException("only " + got.get() + " of " + count + " messages came");
        }
        return String.format(Locale.ROOT, "{\"messages\":%d,\"seconds\":%.6f}", count - warm, (times[1] - times[0]) / 1e9);
    }

    private static String query(String address, String topic, int count, int warm, int rounds) throws Exception {
        DefaultMQProducer p = producer(address);
        long[] times = new long[rounds];
        int at = 0;
        for (int i = -warm; i < rounds; i++) {
            at = (int) ((at + 7919L) % count);
            String key = "order-" + at;
            long start = System.nanoTime();
            QueryResult found = p.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
            long took = System.nanoTime() - start;
            if (found.getMessageList().size() != 1 || !key.equals(found.getMessageList().get(0).getKeys())) {
                throw new IllegalStateException("the query for " + key + " found " + found.getMessageList());
            }
            if (i >= 0) {
                times[i] = took;
            }
        }
        p.shutdown();
        Arrays.sort(times);
        return String.format(Locale.ROOT, "{\"p50_us\":%.1f,\"p99_us\":%.1f}", times[rounds / 2] / 1e3, times[rounds * 99 / 100] / 1e3);
    }

    private static String run(String[] w) throws Exception {
        switch (w[0]) {
            case "first": return first(w[1]);
            case "produce": return produce(w[1], Integer.parseInt(w[2]), Double.parseDouble(w[3]), Double.parseDouble(w[4]));
            case "fill": return fill(w[1], w[2], Integer.parseInt(w[3]));
            case "consume": return consume(w[1], w[2], Integer.parseInt(w[3]), Integer.parseInt(w[4]));
            case "query": return query(w[1], w[2], Integer.parseInt(w[3]), Integer.parseInt(w[4]), Integer.parseInt(w[5]));
            default: throw new IllegalArgumentException("unknown command " + w[0]);
        }
    }

    public static void main(String[] a) throws Exception {
        Home.prepare();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String told;
            try {
                told = run(line.trim().split(" "));
            } catch (Exception e) {
                told = "{\"error\":" + Home.json(e.toString()) + "}";
            }
            System.out.println(told);
            System.out.flush();
        }
        System.exit(0);
    }
}
