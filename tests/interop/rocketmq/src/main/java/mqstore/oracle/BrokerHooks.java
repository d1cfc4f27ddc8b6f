package mqstore.oracle;

import java.lang.reflect.Field;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.TopicConfig;

/**
 * The checks and the delay transformation that a 5.3.x broker hangs in front of its store, registered by the broker's own method.
 * The controller is an empty shell with only the parts the hooks ask for: a real one would open ports.
 */
final class BrokerHooks {
    private BrokerHooks() { }

    static void register(StoreHandle handle, ConcurrentMap<String, TopicConfig> topics) throws Exception {
        Field unsafe = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe");
        unsafe.setAccessible(true);
        Object controller = Reflect.call(unsafe.get(null), "allocateInstance", BrokerController.class);
        Reflect.set(controller, "brokerConfig", handle.brokerConfig);
        Reflect.set(controller, "messageStoreConfig", handle.config);
        Reflect.set(controller, "messageStore", handle.store);
        Object manager = Reflect.make(Reflect.either("org.apache.rocketmq.broker.topic.TopicConfigManager"));
        Reflect.call(manager, "setTopicConfigTable", topics);
        Reflect.set(controller, "topicConfigManager", manager);
        Object schedule = Reflect.make(Reflect.either("org.apache.rocketmq.broker.schedule.ScheduleMessageService"), controller);
        if (!(Boolean) Reflect.call(schedule, "parseDelayLevel")) {
            throw new IllegalStateException("delay levels refused: " + handle.config.getMessageDelayLevel());
        }
        Reflect.set(controller, "scheduleMessageService", schedule);
        Reflect.call(controller, "registerMessageStoreHook");
    }
}
