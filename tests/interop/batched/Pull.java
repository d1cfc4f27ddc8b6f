import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.impl.consumer.PullAPIWrapper;
import org.apache.rocketmq.client.impl.consumer.PullResultExt;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * What a real consumer makes of the pulls that a real store answers, of one queue of a topic of type BatchCQ: a line
 * "queue offset TAB topic TAB hash of the body" for each message, in the order of delivery. Arguments: the store, in place; its properties; topic; queue id;
 * and the queue offset at which pulls begin, by default the lowest.
 */
public final class Pull {
    private Pull() { }

    public static void main(String[] arguments) throws Exception {
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // threads of a store that has begun to start would go on
        });
        Path root = Path.of(arguments[0]);
        String topic = arguments[2];
        int queue = Integer.parseInt(arguments[3]);
        Properties properties = new Properties();
        try (FileInputStream in = new FileInputStream(arguments[1])) {
            properties.load(in);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        config.setHaListenPort(0);
        config.setTimerWheelEnable(false);
        config.setEnableCompaction(false);
        MixAll.properties2Object(properties, config);
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        TopicConfig known = new TopicConfig(topic);
        known.setAttributes(Map.of("queue.type", "BatchCQ"));
        topics.put(topic, known);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("pull", true), (t, q, o, tc, ts, bm, p) -> { }, new BrokerConfig(), topics);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        PullAPIWrapper client = new PullAPIWrapper(new MQClientInstance(new ClientConfig(), 0, "pull"), "pull", false);
        SubscriptionData all = new SubscriptionData(topic, SubscriptionData.SUB_ALL);
        MessageQueue from = new MessageQueue(topic, "broker", queue);
        long end = store.getMaxOffsetInQueue(topic, queue);
        long begin = arguments.length > 4 ? Long.parseLong(arguments[4]) : store.getMinOffsetInQueue(topic, queue);
        for (long at = begin; at < end; ) {
            GetMessageResult answer = store.getMessage("pull", topic, queue, at, 32, null);
            if (answer.getNextBeginOffset() <= at) {
                throw new IllegalStateException("a pull does not get past " + at + ": " + answer.getStatus());
            }
            ByteArrayOutputStream body = new ByteArrayOutputStream();
            for (ByteBuffer part : answer.getMessageBufferList()) {
                byte[] bytes = new byte[part.remaining()];
                part.get(bytes);
                body.write(bytes);
            }
            PullResultExt pulled = new PullResultExt(
                PullStatus.FOUND, answer.getNextBeginOffset(), answer.getMinOffset(), answer.getMaxOffset(), null, 0, body.toByteArray());
            List<MessageExt> messages = client.processPullResult(from, pulled, all).getMsgFoundList();
            for (MessageExt message : messages == null ? List.<MessageExt>of() : messages) {
                System.out.println(message.getQueueOffset() + "\t" + message.getTopic() + "\t" + Arrays.hashCode(message.getBody()));
            }
            at = answer.getNextBeginOffset();
            answer.release();
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // what it read is all that is asked
    }
}
