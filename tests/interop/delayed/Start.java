import java.io.IOException;
import java.net.BindException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Starts a real broker on STORE, whose delay levels are then delivered; stops it when its log has not grown for ten seconds. The files are
 * those of the golden stores: a log in files of 128 KiB, queues in files of 2000 bytes.
 */
public final class Start {
    private Start() { }

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

    public static void main(String[] arguments) throws Exception {
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // threads of a broker that has begun to start would go on
        });
        Path store = Path.of(arguments[0]);
        BrokerConfig config = new BrokerConfig();
        config.setRocketmqHome(Files.createDirectories(store.resolveSibling("home")).toString());
        config.setBrokerIP1("127.0.0.1");
        NettyServerConfig server = new NettyServerConfig();
        MessageStoreConfig files = new MessageStoreConfig();
        server.setListenPort(port());
        files.setHaListenPort(port());
        files.setStorePathRootDir(store.toString());
        files.setStorePathCommitLog(store.resolve("commitlog").toString());
        files.setMappedFileSizeCommitLog(128 << 10);
        files.setMappedFileSizeConsumeQueue(2000);
        files.setMaxHashSlotNum(1000);
        files.setMaxIndexNum(4000);
        files.setDiskMaxUsedSpaceRatio(95);
        BrokerController broker = new BrokerController(config, server, new NettyClientConfig(), files);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not start");
        }
        broker.start();
        long before = -1;
        for (long end = broker.getMessageStore().getMaxPhyOffset(); end != before; end = broker.getMessageStore().getMaxPhyOffset()) {
            before = end;
            Thread.sleep(10_000);
        }
        broker.shutdown();
        System.exit(0);
    }
}
