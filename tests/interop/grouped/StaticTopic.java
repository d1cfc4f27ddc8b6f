import java.io.IOException;
import java.net.BindException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.command.SubCommand;
import org.apache.rocketmq.tools.command.topic.RemappingStaticTopicSubCommand;
import org.apache.rocketmq.tools.command.topic.UpdateStaticTopicSubCommand;

/**
 * A static topic of four logic queues on two real brokers, made and moved with mqadmin's own commands. Argument: a directory for the two
 * stores. Prints what clients get: a line with the queues, and one for each message, then for each queue of the consumer.
 */
public final class StaticTopic {
    private static final String TOPIC = "orders", GROUP = "billing";

    private StaticTopic() { }

    /** A free port, and two below it for its VIP channel, below those that the system gives to other programs in the meantime. */
    private static int port() throws IOException {
        while (true) {
            int port = ThreadLocalRandom.current().nextInt(15_000, 32_000);
            try (ServerSocket first = new ServerSocket(port); ServerSocket second = new ServerSocket(port - 2)) {
                return port;
            } catch (BindException taken) {
                // another one
            }
        }
    }

    private static BrokerController broker(Path root, String name, String names) throws Exception {
        BrokerConfig config = new BrokerConfig();
        config.setRocketmqHome(Files.createDirectories(root.resolve("home")).toString());
        config.setNamesrvAddr(names);
        config.setBrokerName(name);
        config.setBrokerClusterName("DefaultCluster");
        config.setBrokerIP1("127.0.0.1");
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port());
        config.setListenPort(server.getListenPort());
        MessageStoreConfig files = new MessageStoreConfig();
        Path store = root.resolve(name);
        files.setStorePathRootDir(store.toString());
        files.setStorePathCommitLog(store.resolve("commitlog").toString());
        files.setMappedFileSizeCommitLog(128 << 10);
        files.setMappedFileSizeConsumeQueue(2000);
        files.setMaxHashSlotNum(1000);
        files.setMaxIndexNum(4000);
        files.setTimerWheelEnable(false);
        files.setDiskMaxUsedSpaceRatio(95);
        files.setHaListenPort(port());
        BrokerController broker = new BrokerController(config, server, new NettyClientConfig(), files);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not start");
        }
        broker.start();
        return broker;
    }

    private static void admin(SubCommand command, String... arguments) throws Exception {
        Options options = command.buildCommandlineOptions(new Options());
        options.addOption("n", "namesrvAddr", true, "");
        command.execute(new DefaultParser().parse(options, arguments), options, null);
    }

    public static void main(String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        System.setProperty("rocketmq.remoting.version", String.valueOf(MQVersion.CURRENT_VERSION));
        Path root = Path.of(arguments[0]);
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(root.resolve("kv.json").toString());
        config.setConfigStorePath(root.resolve("names.properties").toString());
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port());
        NamesrvController nameServer = new NamesrvController(config, server, new NettyClientConfig());
        nameServer.initialize();
        nameServer.start();
        String names = "127.0.0.1:" + server.getListenPort();
        System.setProperty("rocketmq.namesrv.addr", names);
        BrokerController first = broker(root, "broker-a", names), second = broker(root, "broker-b", names);
        var routes = nameServer.getRouteInfoManager();
        for (int tries = 0; tries < 300 && routes.getAllClusterInfo().getBrokerAddrTable().size() < 2; tries++) {
            Thread.sleep(100);
        }
        System.err.println(routes.getAllClusterInfo().getBrokerAddrTable());
        admin(new UpdateStaticTopicSubCommand(), "-n", names, "-b", "broker-a", "-t", TOPIC, "-qn", "4");
        Thread.sleep(2000);
        List<String> lines = new ArrayList<>();
        send(names, 0, lines);
        admin(new RemappingStaticTopicSubCommand(), "-n", names, "-b", "broker-a,broker-b", "-t", TOPIC);
        Thread.sleep(5000);
        send(names, 10, lines);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(GROUP);
        consumer.setNamesrvAddr(names);
        consumer.start();
        for (BrokerController broker : List.of(first, second)) {
            SubscriptionGroupConfig group = new SubscriptionGroupConfig();
            group.setGroupName(GROUP);
            broker.getSubscriptionGroupManager().updateSubscriptionGroupConfig(group);
        }
        Thread.sleep(1000);
        TreeMap<Integer, String> queues = new TreeMap<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(TOPIC)) {
            consumer.updateConsumeOffset(queue, 5 + queue.getQueueId());
            consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, 5 + queue.getQueueId(), false);
            queues.put(queue.getQueueId(), String.format("{\"logic\":%d,\"min\":%d,\"max\":%d,\"committed\":%d}", queue.getQueueId(),
                consumer.minOffset(queue), consumer.maxOffset(queue), consumer.fetchConsumeOffset(queue, true)));
        }
        consumer.shutdown();
        lines.addAll(queues.values());
        Thread.sleep(6000);
        first.shutdown();
        second.shutdown();
        nameServer.shutdown();
        lines.forEach(System.out::println);
        System.exit(0);
    }

    /** Sends ten messages to each logic queue, with a producer that asks for the queues anew. */
    private static void send(String names, int from, List<String> lines) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers-" + from);
        producer.setInstanceName("sends-" + from);
        producer.setNamesrvAddr(names);
        producer.start();
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(TOPIC));
        queues.sort(Comparator.comparing(MessageQueue::getQueueId));
        for (MessageQueue queue : queues) {
            for (int number = from; number < from + 10; number++) {
                String key = "o-" + queue.getQueueId() + "-" + number;
                var sent = producer.send(new Message(TOPIC, null, key, ("order " + key).getBytes()), queue);
                lines.add(String.format("{\"key\":\"%s\",\"logic\":%d,\"offset\":%d,\"broker\":\"%s\"}", key, sent.getMessageQueue().getQueueId(),
                    sent.getQueueOffset(), sent.getMessageQueue().getBrokerName()));
            }
        }
        producer.shutdown();
    }
}
