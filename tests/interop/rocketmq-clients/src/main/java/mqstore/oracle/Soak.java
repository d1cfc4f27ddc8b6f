package mqstore.oracle;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A broker under unmodified clients for a long time, for benchmarks/soak.py: Soak HOST:PORT SECONDS RATE WINDOW.
 *
 * One producer sends RATE messages of 1 KiB a second, synchronously; a push consumer takes them. Meanwhile topics come and go: each is created,
 * gets twenty messages, which a consumer group of its own receives, and is deleted with that group. A line of JSON every WINDOW seconds: counts
 * since the last one, and the latency of the sends in microseconds. incomplete: topics whose messages did not all arrive within 20 s; expired:
 * those of which retention had removed what did not arrive.
 */
public final class Soak {
    private static final String STEADY = "soak-steady";
    private static final int EACH = 20;

    private final String address;
    private final long end;
    private final AtomicLong sent = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicLong received = new AtomicLong();
    private final AtomicLong topics = new AtomicLong();
    private final AtomicLong incomplete = new AtomicLong();
    private final AtomicLong expired = new AtomicLong();
    private volatile String error = "";
    private long[] times = new long[1 << 16];
    private int timed;

    private Soak(String address, long seconds) {
        this.address = address;
        this.end = System.nanoTime() + seconds * 1_000_000_000L;
    }

    private boolean over() {
        return System.nanoTime() >= end;
    }

    private synchronized void took(long nanos) {
        if (timed == times.length) {
            times = Arrays.copyOf(times, 2 * timed);
        }
        times[timed++] = nanos;
    }

    private synchronized long[] drained() {
        long[] sorted = Arrays.copyOf(times, timed);
        timed = 0;
        Arrays.sort(sorted);
        return sorted;
    }

    private DefaultMQProducer producer(String name) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer(name);
        p.setNamesrvAddr(address);
        p.setInstanceName(name);
        p.setRetryTimesWhenSendFailed(0);
        p.start();
        return p;
    }

    private DefaultMQPushConsumer consumer(String group, String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(address);
        c.setInstanceName(group);
        c.setConsumeThreadMin(1);
        c.setConsumeThreadMax(2);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(topic, "*");
        c.registerMessageListener(listener);
        c.start();
        return c;
    }

    /** Sends a message as soon as the broker takes it, for a minute at the most. */
    private void first() throws Exception {
        DefaultMQProducer p = producer("soak_first");
        long until = System.nanoTime() + 60_000_000_000L;
        while (sent.get() == 0) {
            try {
                p.send(new Message(STEADY, "t", "order-first", new byte[1024]));
                sent.incrementAndGet();
            } catch (Exception notYet) {
                if (System.nanoTime() > until) {
                    notYet.printStackTrace();
                    System.exit(1);
                }
                Thread.sleep(100);
            }
        }
        p.shutdown();
    }

    private void steady(int rate) throws Exception {
        DefaultMQProducer p = producer("soak_producer");
        byte[] body = new byte[1024];
        Arrays.fill(body, (byte) 'x');
        long next = System.nanoTime();
        for (long number = 0; !over(); number++) {
            long wait = next - System.nanoTime();
            if (wait > 0) {
                TimeUnit.NANOSECONDS.sleep(wait);
            }
            next += 1_000_000_000L / rate;
            long start = System.nanoTime();
            try {
                if (p.send(new Message(STEADY, "t", "order-" + number, body)).getSendStatus() != SendStatus.SEND_OK) {
                    failed.incrementAndGet();
                }
                sent.incrementAndGet();
                took(System.nanoTime() - start);
            } catch (Exception e) {
                failed.incrementAndGet();
                error = e.toString();
            }
        }
        p.shutdown();
    }

    private void churn() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000L);
        admin.setNamesrvAddr(address);
        admin.setInstanceName("soak_admin");
        admin.start();
        String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().selectBrokerAddr();
        for (int number = 0; !over(); number++) {
            String topic = "soak-churn-" + number;
            String group = "soak_churn_" + number;
            // a producer asks twice a minute for the routes of all topics that it ever sent to, deleted ones too
            DefaultMQProducer p = producer("soak_churn_producer_" + number);
            try {
                admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, 4, 4, 6));
                long[] positions = new long[EACH];
                for (int i = 0; i < EACH; i++) {
                    SendResult done = p.send(new Message(topic, "t", "k" + i, "message".getBytes(StandardCharsets.UTF_8)));
                    positions[i] = MessageDecoder.decodeMessageId(done.getOffsetMsgId()).getOffset();
                }
                CountDownLatch all = new CountDownLatch(EACH);
                DefaultMQPushConsumer c = consumer(group, topic, (messages, context) -> {
                    messages.forEach(message -> all.countDown());
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                if (!all.await(20, TimeUnit.SECONDS)) {
                    // retention may take a file of the log a second after its last message: what it took, no consumer can get.
                    // The minimum of a queue does not tell: it stays where it is if no entry of the queue has its message left
                    long lowest = Long.parseLong(admin.fetchBrokerRuntimeStats(broker).getTable().get("commitLogMinOffset"));
                    long removed = Arrays.stream(positions).filter(position -> position < lowest).count();
                    if (all.getCount() <= removed) {
                        expired.incrementAndGet();
                    } else {
                        incomplete.incrementAndGet();
                        error = topic + ": " + all.getCount() + " messages are missing after 20 s, retention removed " + removed;
                    }
                }
                c.shutdown();
                admin.deleteTopicInBroker(Collections.singleton(broker), topic);
                // what mqadmin deleteSubGroup does; without it, a broker keeps the retry topic and the offsets for ever
                admin.deleteSubscriptionGroup(broker, group, true);
                admin.deleteTopicInBroker(Collections.singleton(broker), "%RETRY%" + group);
                topics.incrementAndGet();
            } catch (Exception e) {
                incomplete.incrementAndGet();
                error = e.toString();
                Thread.sleep(1000);
            }
            p.shutdown();
        }
        admin.shutdown();
    }

    private void tell(long window) throws InterruptedException {
        long began = System.nanoTime();
        long[] before = new long[6];
        for (long number = 1; !over(); number++) {
            long wait = Math.min(end, began + number * window * 1_000_000_000L) - System.nanoTime();
            if (wait > 0) {
                TimeUnit.NANOSECONDS.sleep(wait);
            }
            long[] now = {sent.get(), failed.get(), received.get(), topics.get(), incomplete.get(), expired.get()};
            long[] sorted = drained();
            System.out.println(String.format(Locale.ROOT,
                "{\"seconds\":%.1f,\"sent\":%d,\"failed\":%d,\"received\":%d,\"topics\":%d,\"incomplete\":%d,\"expired\":%d,"
                    + "\"p50\":%d,\"p99\":%d,\"p999\":%d,\"max\":%d,\"error\":%s}",
                (System.nanoTime() - began) / 1e9, now[0] - before[0], now[1] - before[1], now[2] - before[2], now[3] - before[3],
                now[4] - before[4], now[5] - before[5], at(sorted, 0.5), at(sorted, 0.99), at(sorted, 0.999), at(sorted, 1), Home.json(error)));
            System.out.flush();
            before = now;
        }
    }

    /** The latency that this share of the sends did not exceed, in microseconds; 0 without sends. */
    private static long at(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1, (long) (sorted.length * share))] / 1000;
    }

    private interface Work {
        void run() throws Exception;
    }

    private Thread begun(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception e) {
                failed.incrementAndGet();
                error = e.toString();
            }
        });
        thread.start();
        return thread;
    }

    public static void main(String[] a) throws Exception {
        Home.prepare();
        Soak soak = new Soak(a[0], Long.parseLong(a[1]));
        int rate = Integer.parseInt(a[2]);
        soak.first();
        DefaultMQPushConsumer c = soak.consumer("soak_steady", STEADY, (messages, context) -> {
            soak.received.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Thread[] workers = {soak.begun(() -> soak.steady(rate)), soak.begun(soak::churn)};
        soak.tell(Long.parseLong(a[3]));
        for (Thread worker : workers) {
            worker.join(30_000);
        }
        c.shutdown();
        System.exit(0);
    }
}
