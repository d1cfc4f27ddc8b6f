import java.io.IOException;
import java.net.BindException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ControllerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.controller.ControllerManager;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A controller and two real brokers of its group. Argument: a directory, in which the stores `first` and `second` are left.
 *
 * The first is master, and 20 messages reach both. With the second stopped, 5 more reach the first alone, which is then stopped. The second
 * becomes master in a new epoch and gets 10 others; both stores are then copied to `first.left` and `second.left`, as they are on disk.
 * Last, the first is started again: it cuts what the new master lacks. Prints a line with what each broker says at each step.
 */
public final class Controlled {
    private static final String TOPIC = "orders";
    private static int controllerPort;
    private static String names;
    private static int number;

    private Controlled() { }

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

    private static void until(String what, BooleanSupplier condition) throws Exception {
        for (int tries = 0; tries < 600; tries++) {
            if (condition.getAsBoolean()) {
                return;
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("waited in vain: " + what);
    }

    private static BrokerController broker(Path root, String name) throws Exception {
        BrokerConfig config = new BrokerConfig();
        config.setRocketmqHome(Files.createDirectories(root.resolve("home")).toString());
        config.setNamesrvAddr(names);
        config.setBrokerName("broker-a");
        config.setBrokerClusterName("DefaultCluster");
        config.setBrokerIP1("127.0.0.1");
        config.setEnableControllerMode(true);
        config.setControllerAddr("127.0.0.1:" + controllerPort);
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
        files.setBrokerRole(BrokerRole.SLAVE);
        files.setHaListenPort(port());
        BrokerController broker = new BrokerController(config, server, new NettyClientConfig(), files);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not start");
        }
        broker.start();
        return broker;
    }

    private static boolean isMaster(BrokerController broker) {
        return broker.getMessageStoreConfig().getBrokerRole() != BrokerRole.SLAVE && broker.getReplicasManager().getMasterEpoch() > 0;
    }

    private static void put(BrokerController broker, int count) {
        for (int end = number + count; number < end; number++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(TOPIC);
            message.setBody(("order " + number).getBytes());
            message.setKeys("o-" + number);
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            message.setQueueId(0);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(new InetSocketAddress("127.0.0.1", 10911));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
            var result = broker.getMessageStore().putMessage(message);
            if (!result.isOk()) {
                throw new IllegalStateException("a message was not stored: " + result.getPutMessageStatus());
            }
        }
    }

    private static String said(String step, BrokerController broker) throws Exception {
        return String.format("{\"step\":\"%s\",\"id\":%d,\"epoch\":%d,\"log\":%d,\"confirmed\":%d,\"queue\":%d}", step,
            broker.getReplicasManager().getBrokerControllerId(), broker.getReplicasManager().getMasterEpoch(),
            broker.getMessageStore().getMaxPhyOffset(), broker.getMessageStore().getConfirmOffset(),
            broker.getMessageStore().getMaxOffsetInQueue(TOPIC, 0));
    }

    private static void copy(Path from, Path to) throws IOException {
        try (Stream<Path> files = Files.walk(from)) {
            for (Path file : (Iterable<Path>) files::iterator) {
                Files.copy(file, to.resolve(from.relativize(file).toString()));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        System.setProperty("rocketmq.remoting.version", String.valueOf(MQVersion.CURRENT_VERSION));
        Path root = Path.of(arguments[0]);
        NamesrvConfig namesConfig = new NamesrvConfig();
        namesConfig.setKvConfigPath(root.resolve("kv.json").toString());
        namesConfig.setConfigStorePath(root.resolve("names.properties").toString());
        NettyServerConfig namesServer = new NettyServerConfig();
        namesServer.setListenPort(port());
        NamesrvController nameServer = new NamesrvController(namesConfig, namesServer, new NettyClientConfig());
        nameServer.initialize();
        nameServer.start();
        names = "127.0.0.1:" + namesServer.getListenPort();
        ControllerConfig config = new ControllerConfig();
        config.setControllerDLegerGroup("controllers");
        controllerPort = port(); // the controllers answer where they elect each other
        config.setControllerDLegerPeers("n0-127.0.0.1:" + controllerPort);
        config.setControllerDLegerSelfId("n0");
        config.setControllerStorePath(root.resolve("controller").toString());
        config.setConfigStorePath(root.resolve("controller.properties").toString());
        config.setEnableElectUncleanMaster(true);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port());
        ControllerManager controller = new ControllerManager(config, server, new NettyClientConfig());
        if (!controller.initialize()) {
            throw new IllegalStateException("the controller does not start");
        }
        controller.start();
        until("a leader", () -> controller.getController().isLeaderState());
        BrokerController first = broker(root, "first");
        until("the first is master", () -> isMaster(first));
        first.getTopicConfigManager().updateTopicConfig(new TopicConfig(TOPIC, 1, 1));
        BrokerController second = broker(root, "second");
        put(first, 20);
        until("the second has all", () -> second.getMessageStore().getMaxPhyOffset() == first.getMessageStore().getMaxPhyOffset());
        Thread.sleep(3000);
        System.out.println(said("first, both in step", first));
        System.out.println(said("second, both in step", second));
        second.shutdown();
        put(first, 5);
        Thread.sleep(3000);
        System.out.println(said("first, alone", first));
        first.shutdown();
        BrokerController again = broker(root, "second");
        until("the second is master", () -> isMaster(again));
        put(again, 10);
        Thread.sleep(6000);
        System.out.println(said("second, as master", again));
        copy(root.resolve("first"), root.resolve("first.left"));
        copy(root.resolve("second"), root.resolve("second.left"));
        BrokerController slave = broker(root, "first");
        until("the first has all", () -> slave.getMessageStore().getMaxPhyOffset() == again.getMessageStore().getMaxPhyOffset());
        Thread.sleep(3000);
        System.out.println(said("first, as slave", slave));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
