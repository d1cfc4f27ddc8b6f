package mqstore.oracle;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A real name node, data nodes, resource manager and node managers in this process, on ports of their own.
 *
 * <p>Arguments: a directory for their files, and the number of data nodes and of node managers. The directory gets {@code conf}, the
 * configuration of clients. The line {@code ready hdfs://… http://…} says where HDFS and WebHDFS are. Commands on standard input:
 * {@code stop-node-manager N}, answered by {@code stopped N}; everything ends with standard input.
 */
public final class MiniClusters {
    private MiniClusters() {}

    public static void main(String[] args) throws Exception {
        Path place = Path.of(args[0]);
        int nodes = Integer.parseInt(args[1]);
        // MiniYARNCluster has no option for its directory
        System.setProperty("test.build.data", place.resolve("yarn").toString());
        Configuration base = new Configuration();
        base.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, place.resolve("dfs").toString());
        MiniDFSCluster dfs = new MiniDFSCluster.Builder(base).numDataNodes(nodes).build();
        dfs.waitActive();
        YarnConfiguration conf = new YarnConfiguration(dfs.getConfiguration(0));
        conf.setInt("yarn.nodemanager.resource.memory-mb", 4096);
        conf.setInt("yarn.nodemanager.resource.cpu-vcores", 4);
        conf.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        conf.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        conf.setBoolean("yarn.nodemanager.disk-health-checker.enable", false);
        // how long a node manager that says nothing more counts as alive; the default is ten minutes
        conf.setInt("yarn.nm.liveness-monitor.expiry-interval-ms", 20_000);
        conf.setInt("yarn.resourcemanager.nm.liveness-monitor.interval-ms", 1_000);
        MiniYARNCluster yarn = new MiniYARNCluster("mqstore", nodes, 1, 1);
        yarn.init(conf);
        yarn.start();
        Configuration client = new Configuration(false);
        client.set("fs.defaultFS", dfs.getURI().toString());
        for (String name : new String[] {"hostname", "address", "scheduler.address", "admin.address", "webapp.address"}) {
            client.set("yarn.resourcemanager." + name, yarn.getConfig().get("yarn.resourcemanager." + name));
        }
        Path directory = Files.createDirectories(place.resolve("conf"));
        for (String name : new String[] {"core-site.xml", "yarn-site.xml"}) {
            try (OutputStream out = Files.newOutputStream(directory.resolve(name))) {
                client.writeXml(out);
            }
        }
        System.out.println("ready " + dfs.getURI() + " " + dfs.getHttpUri(0));
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.strip().split(" ");
            if (words[0].equals("stop-node-manager")) {
                yarn.getNodeManager(Integer.parseInt(words[1])).stop();
                System.out.println("stopped " + words[1]);
            } else {
                System.out.println("unknown " + line);
            }
        }
        System.exit(0);
    }
}
