package mqstore.oracle;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * What clients with keys, with wrong ones and without may do. One JSON line per case: {"case","ok","code","text"}.
 * Access NAMESRV BROKER [case ...]: the accounts are those of plain_acl.yml beside the pom.
 */
public final class Access {
    interface Body {
        String run() throws Exception;
    }

    /** A refusal, as the client shows it. */
    static final class Refused extends Exception {
        final int code;

        Refused(int code, String text) {
            super(text);
            this.code = code;
        }
    }

    // own headers: the packages of the clients' ones differ between versions, and the hook signs any header's fields
    public static final class TopicHeader implements CommandCustomHeader {
        String topic;

        public void checkFields() { }
    }

    public static final class SendHeader implements CommandCustomHeader {
        String a;
        String b;
        String c = "TBW102";
        String d = "4";
        String e = "0";
        String f = "0";
        String g = "1795229727088";
        String h = "0";

        public void checkFields() { }
    }

    public static final class OffsetHeader implements CommandCustomHeader {
        String consumerGroup;
        String topic;
        String queueId = "0";
        String commitOffset;

        public void checkFields() { }
    }

    public static final class PullHeader implements CommandCustomHeader {
        String consumerGroup;
        String topic;
        String queueId = "0";
        String queueOffset = "0";
        String maxMsgNums = "32";
        String sysFlag = "4";
        String commitOffset = "0";
        String suspendTimeoutMillis = "0";
        String subscription = "*";
        String subVersion = "0";

        public void checkFields() { }
    }

    static final RPCHook SHOP = hook("shopkeeper", "the shop's key");
    static final RPCHook OPERATOR = hook("operator", "the operator's key");
    static final RPCHook WRONG = hook("shopkeeper", "another key");
    static final RPCHook UNKNOWN = hook("stranger-1", "any key at all");

    private final String namesrv;
    private final String broker;
    private final List<String> only;
    private final AtomicInteger count = new AtomicInteger();

    Access(String namesrv, String broker, List<String> only) {
        this.namesrv = namesrv;
        this.broker = broker;
        this.only = only;
    }

    static RPCHook hook(String accessKey, String secretKey) {
        return new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }

    void one(String name, Body body) {
        if (!only.isEmpty() && !only.contains(name)) {
            return;
        }
        boolean ok = false;
        int code = 0;
        String text;
        try {
            text = body.run();
            ok = true;
        } catch (Throwable t) {
            Throwable why = t;
            while (!(why instanceof Refused || why instanceof MQBrokerException || why instanceof MQClientException) && why.getCause() != null) {
                why = why.getCause();
            }
            text = why instanceof Refused ? why.getMessage() : why.getClass().getSimpleName() + ": " + why.getMessage();
            code = why instanceof Refused ? ((Refused) why).code
                : why instanceof MQBrokerException ? ((MQBrokerException) why).getResponseCode()
                : why instanceof MQClientException ? ((MQClientException) why).getResponseCode() : -1;
        }
        System.out.println("{\"case\":" + Home.json(name) + ",\"ok\":" + ok + ",\"code\":" + code + ",\"text\":" + Home.json(String.valueOf(text)) + "}");
        System.out.flush();
    }

    /** End a client while the next case runs: a 5.3.3 client waits three seconds for its connections to close. */
    static void end(Runnable shutdown) {
        Thread thread = new Thread(shutdown, "end of a client");
        thread.setDaemon(true);
        thread.start();
    }

    // one request, signed by a hook or not; the response's code and remark as they are

    String request(RPCHook hook, String address, int code, CommandCustomHeader header, byte[] body) throws Exception {
        NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        if (hook != null) {
            client.registerRPCHook(hook);
        }
        client.start();
        try {
            RemotingCommand request = RemotingCommand.createRequestCommand(code, header);
            request.setBody(body);
            RemotingCommand response = client.invokeSync(address, request, 10_000);
            if (response.getCode() != 0) {
                throw new Refused(response.getCode(), response.getRemark());
            }
            return "code 0";
        } finally {
            end(client::shutdown);
        }
    }

    void oneway(RPCHook hook, int code, CommandCustomHeader header) throws Exception {
        NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        client.registerRPCHook(hook);
        client.start();
        try {
            client.invokeOneway(broker, RemotingCommand.createRequestCommand(code, header), 10_000);
            // an answer on the same connection shows that the request before it was handled
            client.invokeSync(broker, RemotingCommand.createRequestCommand(106, null), 10_000);
        } catch (Exception e) {
            if (!(e instanceof org.apache.rocketmq.remoting.exception.RemotingException)) {
                throw e;
            }
        } finally {
            end(client::shutdown);
        }
    }

    static TopicHeader topic(String name) {
        TopicHeader header = new TopicHeader();
        header.topic = name;
        return header;
    }

    static SendHeader send(String topic) {
        SendHeader header = new SendHeader();
        header.a = "acl-producers";
        header.b = topic;
        return header;
    }

    static OffsetHeader offset(String group, String topic, String offset) {
        OffsetHeader header = new OffsetHeader();
        header.consumerGroup = group;
        header.topic = topic;
        header.commitOffset = offset;
        return header;
    }

    static PullHeader pull(String group, String topic) {
        PullHeader header = new PullHeader();
        header.consumerGroup = group;
        header.topic = topic;
        return header;
    }

    static byte[] heartbeat(String group, String topic) {
        String text = "{\"clientID\":\"c@1\",\"producerDataSet\":[{\"groupName\":\"acl-producers\"}],\"consumerDataSet\":[{\"groupName\":\"" + group
            + "\",\"consumeType\":\"CONSUME_PASSIVELY\",\"messageModel\":\"CLUSTERING\",\"consumeFromWhere\":\"CONSUME_FROM_FIRST_OFFSET\","
            + "\"unitMode\":false,\"subscriptionDataSet\":[{\"topic\":\"" + topic + "\",\"subString\":\"*\",\"subVersion\":1,\"tagsSet\":[],"
            + "\"codeSet\":[],\"expressionType\":\"TAG\",\"classFilterMode\":false}]}]}";
        return text.getBytes(StandardCharsets.UTF_8);
    }

    // the clients themselves

    DefaultMQProducer producer(RPCHook hook) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("acl-producers", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("p" + count.incrementAndGet());
        producer.setRetryTimesWhenSendFailed(0);
        producer.setVipChannelEnabled(false);
        producer.start();
        return producer;
    }

    String sent(RPCHook hook, String topic) throws Exception {
        DefaultMQProducer producer = producer(hook);
        try {
            return producer.send(new Message(topic, "t", "k", "hello".getBytes(StandardCharsets.UTF_8)), 10_000).getSendStatus().name();
        } finally {
            end(producer::shutdown);
        }
    }

    String sentBatch(RPCHook hook, String topic) throws Exception {
        DefaultMQProducer producer = producer(hook);
        try {
            List<Message> batch = new ArrayList<>();
            batch.add(new Message(topic, "one".getBytes(StandardCharsets.UTF_8)));
            batch.add(new Message(topic, "two".getBytes(StandardCharsets.UTF_8)));
            return producer.send(batch, 10_000).getSendStatus().name();
        } finally {
            end(producer::shutdown);
        }
    }

    /** Consume until a message has come twice, the second time after RECONSUME_LATER. */
    String consumedWithRetry(RPCHook hook, String group, String topic, int seconds) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("c" + count.incrementAndGet());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        CountDownLatch again = new CountDownLatch(1);
        AtomicInteger first = new AtomicInteger();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (message.getReconsumeTimes() > 0) {
                    again.countDown();
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }
            }
            context.setDelayLevelWhenNextConsume(1);
            return first.getAndIncrement() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            if (!again.await(seconds, TimeUnit.SECONDS)) {
                throw new Refused(-2, first.get() == 0 ? "no message came" : "no message came again");
            }
            return "consumed, sent back, consumed again";
        } finally {
            end(consumer::shutdown);
        }
    }

    String litePulled(RPCHook hook, String group, String topic) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("l" + count.incrementAndGet());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        try {
            long end = System.currentTimeMillis() + 60_000;
            while (System.currentTimeMillis() < end) {
                if (!consumer.poll(1000).isEmpty()) {
                    return "pulled";
                }
            }
            throw new Refused(-2, "no message came");
        } finally {
            end(consumer::shutdown);
        }
    }

    /** Commit a message in a transaction, and consume it in order, which needs locks of queues. */
    String transactionConsumedInOrder(RPCHook hook, String group, String topic) throws Exception {
        String text = "transaction " + System.nanoTime();
        TransactionMQProducer producer = new TransactionMQProducer("acl-transactions", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("t" + count.incrementAndGet());
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("o" + count.incrementAndGet());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        CountDownLatch came = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                if (text.equals(new String(message.getBody(), StandardCharsets.UTF_8))) {
                    came.countDown();
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        producer.start();
        consumer.start();
        try {
            producer.sendMessageInTransaction(new Message(topic, text.getBytes(StandardCharsets.UTF_8)), null);
            if (!came.await(90, TimeUnit.SECONDS)) {
                throw new Refused(-2, "no message came");
            }
            return "committed and consumed";
        } finally {
            end(consumer::shutdown);
            end(producer::shutdown);
        }
    }

    DefaultMQAdminExt admin(RPCHook hook) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(hook, 60_000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("a" + count.incrementAndGet());
        admin.setVipChannelEnabled(false);
        admin.start();
        return admin;
    }

    String createdTopics(RPCHook hook, String... topics) throws Exception {
        DefaultMQAdminExt admin = admin(hook);
        try {
            for (String topic : topics) {
                TopicConfig config = new TopicConfig(topic);
                config.setReadQueueNums(1);
                config.setWriteQueueNums(1);
                admin.createAndUpdateTopicConfig(broker, config);
            }
            for (String topic : topics) {
                long end = System.currentTimeMillis() + 30_000;
                while (true) {
                    try {
                        admin.examineTopicRouteInfo(topic);
                        break;
                    } catch (MQClientException e) {
                        if (System.currentTimeMillis() > end) {
                            throw e;
                        }
                        Thread.sleep(200);
                    }
                }
            }
            return "created";
        } finally {
            end(admin::shutdown);
        }
    }

    String route(RPCHook hook, String topic) throws Exception {
        DefaultMQAdminExt admin = admin(hook);
        try {
            return "queues " + admin.examineTopicRouteInfo(topic).getQueueDatas().size();
        } finally {
            end(admin::shutdown);
        }
    }

    String mqadmin(RPCHook hook, String... words) throws Exception {
        // 4.9.3 takes the keys from this file, 5.3.3 the hook
        SessionCredentials keys = ((AclClientRPCHook) hook).getSessionCredentials();
        String tools = "accessKey: " + keys.getAccessKey() + "\nsecretKey: " + keys.getSecretKey() + "\n";
        java.nio.file.Files.write(java.nio.file.Paths.get(System.getProperty("rocketmq.home.dir"), "conf", "tools.yml"), tools.getBytes());
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream caught = new ByteArrayOutputStream();
        try (PrintStream to = new PrintStream(caught, true)) {
            System.setOut(to);
            System.setErr(to);
            MQAdminStartup.main0(words, hook);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return new String(caught.toByteArray(), StandardCharsets.UTF_8);
    }

    String mqadminOk(RPCHook hook, String expected, String... words) throws Exception {
        String printed = mqadmin(hook, words);
        if (!printed.contains(expected)) {
            throw new Refused(-3, printed);
        }
        return expected;
    }

    void all() {
        one("admin-creates-topics", () -> createdTopics(OPERATOR, "AclOrders", "AclReadOnly", "AclDenied"));
        one("send", () -> sent(SHOP, "AclOrders"));
        one("send-batch", () -> sentBatch(SHOP, "AclOrders"));
        one("consume-and-retry", () -> consumedWithRetry(SHOP, "acl-billing", "AclOrders", 90));
        one("lite-pull", () -> litePulled(SHOP, "acl-archive", "AclOrders"));
        one("transaction-and-order", () -> transactionConsumedInOrder(SHOP, "acl-order", "AclOrders"));
        one("admin-sends", () -> sent(OPERATOR, "AclDenied"));
        one("mqadmin-admin", () -> mqadminOk(OPERATOR, "create topic to", "updateTopic", "-b", broker, "-t", "AclByTool", "-n", namesrv));
        one("mqadmin-topic-status", () -> mqadminOk(SHOP, "#Broker Name", "topicStatus", "-t", "AclOrders", "-n", namesrv));

        one("send-denied-topic", () -> sent(SHOP, "AclDenied"));
        one("send-read-only-topic", () -> sent(SHOP, "AclReadOnly"));
        one("send-batch-denied-topic", () -> sentBatch(SHOP, "AclDenied"));
        one("send-wrong-key", () -> request(WRONG, broker, 310, send("AclOrders"), "x".getBytes()));
        one("send-unknown-key", () -> request(UNKNOWN, broker, 310, send("AclOrders"), "x".getBytes()));
        one("send-no-key", () -> request(null, broker, 310, send("AclOrders"), "x".getBytes()));
        one("pull", () -> request(SHOP, broker, 11, pull("acl-billing", "AclOrders"), null));
        one("pull-denied-topic", () -> request(SHOP, broker, 11, pull("acl-billing", "AclDenied"), null));
        one("pull-denied-group", () -> request(SHOP, broker, 11, pull("acl-denied", "AclOrders"), null));
        one("pull-wrong-key", () -> request(WRONG, broker, 11, pull("acl-billing", "AclOrders"), null));
        one("heartbeat", () -> request(SHOP, broker, 34, null, heartbeat("acl-billing", "AclOrders")));
        one("heartbeat-denied-topic", () -> request(SHOP, broker, 34, null, heartbeat("acl-billing", "AclDenied")));
        one("heartbeat-denied-group", () -> request(SHOP, broker, 34, null, heartbeat("acl-denied", "AclOrders")));
        one("heartbeat-no-key", () -> request(null, broker, 34, null, heartbeat("acl-billing", "AclOrders")));
        one("create-topic-not-admin", () -> createdTopics(SHOP, "AclMine"));
        one("update-config-not-admin", () -> request(SHOP, broker, 25, null, "traceTopicEnable=true".getBytes()));
        one("delete-topic-not-admin", () -> request(SHOP, broker, 215, topic("AclOrders"), null));
        one("mqadmin-not-admin", () -> mqadminOk(SHOP, "create topic to", "updateTopic", "-b", broker, "-t", "AclMine", "-n", namesrv));
        one("route", () -> route(SHOP, "AclOrders"));
        one("route-wrong-key", () -> route(WRONG, "AclOrders"));
        one("route-unknown-key", () -> route(UNKNOWN, "AclOrders"));
        one("route-no-key", () -> route(null, "AclOrders"));
        one("oneway-offset", () -> {
            oneway(SHOP, 15, offset("acl-oneway", "AclOrders", "5"));
            return request(SHOP, broker, 14, offset("acl-oneway", "AclOrders", null), null);
        });
        one("oneway-offset-wrong-key", () -> {
            oneway(WRONG, 15, offset("acl-oneway-2", "AclReadOnly", "7"));
            return request(SHOP, broker, 14, offset("acl-oneway-2", "AclReadOnly", null), null);
        });
        one("producer-no-key", () -> sent(null, "AclOrders"));
    }

    public static void main(String[] args) throws Exception {
        Home.prepare();
        List<String> words = new ArrayList<>();
        Collections.addAll(words, args);
        new Access(words.get(0), words.get(1), words.subList(2, words.size())).all();
        System.exit(0);
    }
}
