import java.util.Base64;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * All messages of topics through the real client, and what it says when it sends.
 *
 * <pre>
 * Drain HOST:PORT pull TOPIC…    a line for each message: queue id, queue offset, physical offset, body in base64, topic
 * Drain HOST:PORT send TOPIC     the exception of a send, and its cause
 * </pre>
 *
 * Run from its source: java -cp "lib/*" Drain.java …
 */
public final class Drain {
    public static void main(String[] arguments) throws Exception {
        try {
            if (arguments[1].equals("pull")) {
                pull(arguments);
            } else {
                send(arguments[0], arguments[2]);
            }
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);  // the threads of a client keep the process alive
        }
    }

    private static void pull(String[] arguments) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("readers");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.start();
        for (int number = 2; number < arguments.length; number++) {
            Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(arguments[number]);
            for (MessageQueue queue : queues) {
                long offset = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                while (offset < end) {
                    PullResult found = consumer.pull(queue, "*", offset, 32);
                    if (found.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt each : found.getMsgFoundList()) {
                            System.out.println("> " + queue.getQueueId() + " " + each.getQueueOffset() + " " + each.getCommitLogOffset()
                                + " =" + Base64.getEncoder().encodeToString(each.getBody() == null ? new byte[0] : each.getBody()) + " " + arguments[number]);
                        }
                    }
                    if (found.getNextBeginOffset() <= offset) {
                        System.out.println("stuck at " + offset + " of " + queue);
                        break;
                    }
                    offset = found.getNextBeginOffset();
                }
            }
        }
        System.out.flush();
    }

    private static void send(String address, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("writers");
        producer.setNamesrvAddr(address);
        producer.start();
        try {
            System.out.println("sent: " + producer.send(new Message(topic, "x".getBytes("UTF-8"))));
        } catch (Exception error) {
            System.out.println("refused: " + error.getMessage() + " | " + error.getCause());
        }
        System.out.flush();
    }
}
