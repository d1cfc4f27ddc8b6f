import java.io.PrintWriter;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Base64;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.remoting.Configuration;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.plugin.MessageStorePluginContext;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tieredstore.TieredMessageStore;
import org.apache.rocketmq.tieredstore.core.MessageStoreDispatcherImpl;
import org.apache.rocketmq.tieredstore.file.FlatFileInterface;
import org.apache.rocketmq.tieredstore.file.FlatMessageFile;

/**
 * Fills a store with tiered storage in files beside it. Arguments: ROOT COUNT.
 *
 * ROOT gets store/, tiered/, sent.jsonl (what was put, and where in the local log) and read.jsonl (what the tiered store reads).
 */
public final class Fill {
    public static void main(String[] args) throws Exception {
        Path root = Paths.get(args[0]).toAbsolutePath();
        Path place = root.resolve("store");
        Properties options = new Properties();
        options.setProperty("tieredBackendServiceProvider", "org.apache.rocketmq.tieredstore.provider.PosixFileSegment");
        options.setProperty("tieredStoreFilePath", root.resolve("tiered").toString());
        options.setProperty("tieredStoreCommitLogMaxSize", "16384");
        options.setProperty("tieredStoreConsumeQueueMaxSize", "1000");
        options.setProperty("tieredStoreIndexFileMaxHashSlotNum", "100");
        options.setProperty("tieredStoreIndexFileMaxIndexNum", "400");
        options.setProperty("brokerName", "broker-a");
        options.setProperty("brokerClusterName", "DefaultCluster");
        options.setProperty("storePathRootDir", place.toString());
        BrokerConfig brokerConfig = new BrokerConfig();
        brokerConfig.setBrokerName("broker-a");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setHaListenPort(0);
        config.setTimerWheelEnable(false);
        config.setEnableCompaction(false);
        config.setMappedFileSizeCommitLog(65536);
        config.setMappedFileSizeConsumeQueue(2000);
        config.setMaxHashSlotNum(100);
        config.setMaxIndexNum(400);
        config.setStorePathRootDir(place.toString());
        config.setStorePathCommitLog(place.resolve("commitlog").toString());
        BrokerStatsManager stats = new BrokerStatsManager("fill", true);
        DefaultMessageStore local = new DefaultMessageStore(
            config, stats, (t, q, o, c, s, b, p) -> { }, brokerConfig, new ConcurrentHashMap<>());
        Configuration configuration = new Configuration(LoggerFactory.getLogger("fill"), brokerConfig);
        configuration.registerConfig(options);
        TieredMessageStore store = new TieredMessageStore(
            new MessageStorePluginContext(config, stats, null, brokerConfig, configuration), local);
        if (!store.load()) {
            throw new IllegalStateException("the store did not load");
        }
        store.start();
        put(store, root, Integer.parseInt(args[1]));
        while (local.dispatchBehindBytes() > 0) {
            Thread.sleep(5);
        }
        MessageStoreDispatcherImpl dispatcher = dispatcher(store);
        for (FlatFileInterface file : store.getFlatFileStore().deepCopyFlatFileToList()) {
            long end = local.getMaxOffsetInQueue(file.getMessageQueue().getTopic(), file.getMessageQueue().getQueueId());
            while (file.getConsumeQueueCommitOffset() < end) {
                dispatcher.doScheduleDispatch(file, true);
                Thread.sleep(50);
            }
            ((FlatMessageFile) file).flushMetadata();
        }
        read(store, root);
        ((ConfigManager) store.getMetadataStore()).persist();
        store.shutdown();
        Runtime.getRuntime().halt(0);
    }

    private static void put(TieredMessageStore store, Path root, int count) throws Exception {
        Random random = new Random(7);
        try (PrintWriter out = new PrintWriter(root.resolve("sent.jsonl").toFile(), StandardCharsets.UTF_8)) {
            for (int i = 0; i < count; i++) {
                StringBuilder body = new StringBuilder("message " + i);
                for (int k = random.nextInt(20); k > 0; k--) {
                    body.append(" 消息 ").append(random.nextInt(1000));
                }
                MessageExtBrokerInner m = new MessageExtBrokerInner();
                m.setTopic(i % 3 == 0 ? "payments" : "orders");
                m.setQueueId(random.nextInt(2));
                if (random.nextInt(4) > 0) {
                    m.setTags("Tag" + random.nextInt(3));
                }
                m.setKeys("key" + i);
                m.putUserProperty("shop", "лавка-" + i);
                MessageAccessor.putProperty(m, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, String.format("%032X", i));
                m.setBody(body.toString().getBytes(StandardCharsets.UTF_8));
                m.setFlag(random.nextInt(5));
                m.setBornTimestamp(System.currentTimeMillis());
                m.setBornHost(new InetSocketAddress("127.0.0.1", 4000 + i));
                m.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
                m.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, m.getTags()));
                m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
                PutMessageResult result = store.putMessage(m);
                if (!result.isOk()) {
                    throw new IllegalStateException(result.toString());
                }
                out.println(line(m, result.getAppendMessageResult().getLogicsOffset(), result.getAppendMessageResult().getWroteOffset(),
                    result.getAppendMessageResult().getWroteBytes(), result.getAppendMessageResult().getStoreTimestamp()));
            }
        }
    }

    private static void read(TieredMessageStore store, Path root) throws Exception {
        try (PrintWriter out = new PrintWriter(root.resolve("read.jsonl").toFile(), StandardCharsets.UTF_8)) {
            for (FlatFileInterface file : store.getFlatFileStore().deepCopyFlatFileToList()) {
                for (long at = file.getConsumeQueueMinOffset(); at < file.getConsumeQueueCommitOffset(); at++) {
                    ByteBuffer record = file.getMessageAsync(at).join();
                    MessageExt m = MessageDecoder.decode(record, true, false);
                    out.println(line(m, m.getQueueOffset(), m.getCommitLogOffset(), m.getStoreSize(), m.getStoreTimestamp()));
                }
            }
        }
    }

    private static String line(MessageExt m, long queueOffset, long physicalOffset, int size, long stored) {
        return String.format("{\"topic\": \"%s\", \"queue_id\": %d, \"queue_offset\": %d, \"physical_offset\": %d, \"size\": %d, "
            + "\"tags\": %s, \"keys\": \"%s\", \"uniq_key\": \"%s\", \"shop\": \"%s\", \"flag\": %d, \"born_timestamp\": %d, "
            + "\"store_timestamp\": %d, \"born_port\": %d, \"body\": \"%s\"}",
            m.getTopic(), m.getQueueId(), queueOffset, physicalOffset, size,
            m.getTags() == null ? "null" : "\"" + m.getTags() + "\"", m.getKeys(),
            m.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX), m.getUserProperty("shop"), m.getFlag(),
            m.getBornTimestamp(), stored, ((InetSocketAddress) m.getBornHost()).getPort(),
            Base64.getEncoder().encodeToString(m.getBody()));
    }

    private static MessageStoreDispatcherImpl dispatcher(TieredMessageStore store) throws Exception {
        java.lang.reflect.Field field = TieredMessageStore.class.getDeclaredField("dispatcher");
        field.setAccessible(true);
        return (MessageStoreDispatcherImpl) field.get(store);
    }
}
