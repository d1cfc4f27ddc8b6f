import java.io.IOException;
import java.net.BindException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.SocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A real broker whose messages are popped. `make STORE file|kv MS`: 20 messages o-0 to o-19; 12 are popped for MS, and 5 of them
 * acknowledged; the broker is stopped, or killed if the fourth argument is `kill`. `resume STORE file|kv SECONDS`: starts it again, and
 * prints the keys of what comes into the retry topic within that time. The last line of the output is JSON.
 */
public final class Pop {
    private static final String TOPIC = "orders", GROUP = "billing";
    private final BrokerController broker;
    private final String address;

    private Pop(Path store, boolean kv) throws Exception {
        Path home = Files.createDirectories(store.resolveSibling("home"));
        int port = port();
        BrokerConfig config = new BrokerConfig();
        config.setRocketmqHome(home.toString());
        config.setBrokerName("broker-a");
        config.setBrokerClusterName("DefaultCluster");
        config.setBrokerIP1("127.0.0.1");
        if (kv) {
            BrokerConfig.class.getMethod("setPopConsumerKVServiceEnable", boolean.class).invoke(config, true);
            BrokerConfig.class.getMethod("setPopConsumerKVServiceInit", boolean.class).invoke(config, true);
        }
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        MessageStoreConfig files = new MessageStoreConfig();
        files.setStorePathRootDir(store.toString());
        files.setStorePathCommitLog(store.resolve("commitlog").toString());
        files.setMappedFileSizeCommitLog(1 << 20);
        files.setMappedFileSizeConsumeQueue(20_000);
        files.setMaxHashSlotNum(1000);
        files.setMaxIndexNum(4000);
        files.setDiskMaxUsedSpaceRatio(95);
        files.setHaListenPort(port());
        broker = new BrokerController(config, server, new NettyClientConfig(), files);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not start");
        }
        broker.start();
        address = "127.0.0.1:" + port;
    }

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
        Path store = Path.of(arguments[1]);
        Pop pop = new Pop(store, arguments[2].equals("kv"));
        if (arguments[0].equals("make")) {
            String line = pop.make(Long.parseLong(arguments[3]));
            if (arguments.length > 4 && arguments[4].equals("kill")) {
                Thread.sleep(15_000); // offsets and buffers are written every few seconds
                print(line);
                Runtime.getRuntime().halt(0);
            }
            pop.broker.shutdown();
            print(line);
        } else {
            String line = pop.resume(Long.parseLong(arguments[3]));
            pop.broker.shutdown();
            print(line);
        }
        System.exit(0);
    }

    private static void print(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private String make(long invisible) throws Exception {
        broker.getTopicConfigManager().updateTopicConfig(new TopicConfig(TOPIC, 1, 1));
        SocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        for (int number = 0; number < 20; number++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(TOPIC);
            message.setBody(("order " + number).getBytes());
            message.setKeys("o-" + number);
            message.putUserProperty("number", Integer.toString(number));
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            message.setQueueId(0);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(host);
            message.setStoreHost(host);
            if (!broker.getMessageStore().putMessage(message).isOk()) {
                throw new IllegalStateException("a message was not stored");
            }
        }
        Thread.sleep(2000);
        MQClientAPIImpl client = new MQClientAPIImpl(new NettyClientConfig(), null, null, new ClientConfig());
        client.start();
        List<MessageExt> popped = new ArrayList<>();
        for (int attempt = 0; popped.size() < 12 && attempt < 20; attempt++) {
            popped.addAll(pop(client, 12 - popped.size(), invisible));
        }
        for (MessageExt message : popped.subList(0, 5)) {
            acknowledge(client, message);
        }
        client.shutdown();
        Thread.sleep(1000);
        return "{\"popped\":" + popped.size() + ",\"until\":" + (System.currentTimeMillis() + invisible) + "}";
    }

    private List<MessageExt> pop(MQClientAPIImpl client, int number, long invisible) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(GROUP);
        header.setTopic(TOPIC);
        header.setQueueId(0);
        header.setMaxMsgNums(number);
        header.setInvisibleTime(invisible);
        header.setInitMode(0); // from the first message
        header.setExpType("TAG");
        header.setExp("*");
        header.setPollTime(1000);
        header.setBornTime(System.currentTimeMillis());
        header.setOrder(false);
        CompletableFuture<PopResult> answer = new CompletableFuture<>();
        client.popMessageAsync("broker-a", address, header, 20_000, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        });
        List<MessageExt> found = answer.get(30, TimeUnit.SECONDS).getMsgFoundList();
        return found == null ? List.of() : found;
    }

    private void acknowledge(MQClientAPIImpl client, MessageExt message) throws Exception {
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(GROUP);
        header.setTopic(TOPIC);
        header.setQueueId(message.getQueueId());
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
        CompletableFuture<AckResult> answer = new CompletableFuture<>();
        client.ackMessageAsync(address, 20_000, new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        }, header);
        answer.get(30, TimeUnit.SECONDS);
    }

    private String resume(long seconds) throws Exception {
        TreeSet<String> keys = new TreeSet<>();
        long end = System.currentTimeMillis() + seconds * 1000;
        int before = -1;
        while (System.currentTimeMillis() < end && !(keys.size() >= 7 && keys.size() == before)) {
            before = keys.size();
            Thread.sleep(2000);
            for (String topic : new String[] {"%RETRY%" + GROUP + "_" + TOPIC, "%RETRY%" + GROUP + "+" + TOPIC}) {
                GetMessageResult found = broker.getMessageStore().getMessage(GROUP + "-reader", topic, 0, 0, 100, null);
                if (found == null) {
                    continue;
                }
                found.getMessageBufferList().forEach(buffer -> keys.add(MessageDecoder.decode(buffer).getKeys().trim()));
                found.release();
            }
        }
        Thread.sleep(6000); // the progress is written
        StringBuilder line = new StringBuilder();
        for (String key : keys) {
            line.append(line.length() == 0 ? "\"" : ",\"").append(key).append('"');
        }
        return "{\"again\":[" + line + "]}";
    }
}
