import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One producer or one consumer of the real client, until standard input ends.
 *
 * <pre>
 * Load HOST:PORT produce TOPIC    a line for each message acknowledged with SEND_OK: body, queue id, queue offset, offset message id
 * Load HOST:PORT consume TOPIC    a line for each message consumed: body
 * </pre>
 *
 * Run from its source: java -cp "lib/*" Load.java …
 */
public final class Load {
    private static final int THREADS = 4;

    public static void main(String[] arguments) throws Exception {
        AtomicBoolean ended = new AtomicBoolean();
        if (arguments[1].equals("produce")) {
            produce(arguments[0], arguments[2], ended);
        } else {
            consume(arguments[0], arguments[2]);
        }
        System.exit(0);
    }

    private static void untilInputEnds() throws Exception {
        while (System.in.read() >= 0) {
            continue;
        }
    }

    private static void say(String line) {
        synchronized (Load.class) {
            System.out.println("> " + line);
            System.out.flush();
        }
    }

    private static void produce(String address, String topic, AtomicBoolean ended) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("killed-producers");
        producer.setNamesrvAddr(address);
        producer.setSendMsgTimeout(5000);
        producer.start();
        AtomicLong counter = new AtomicLong();
        Thread[] threads = new Thread[THREADS];
        for (int number = 0; number < THREADS; number++) {
            threads[number] = new Thread(() -> {
                while (!ended.get()) {
                    String body = "m-" + counter.getAndIncrement();
                    try {
                        SendResult sent = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
                        if (sent.getSendStatus() == SendStatus.SEND_OK) {
                            say(body + " " + sent.getMessageQueue().getQueueId() + " " + sent.getQueueOffset() + " " + sent.getOffsetMsgId());
                        }
                    } catch (Exception broken) {
                        pause();
                    }
                }
            });
            threads[number].start();
        }
        untilInputEnds();
        ended.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
    }

    private static void pause() {
        try {
            Thread.sleep(50);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static void consume(String address, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("killed-consumers");
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        untilInputEnds();
        consumer.shutdown();
    }
}
