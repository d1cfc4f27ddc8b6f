package mqstore.oracle;

import com.alibaba.fastjson.JSONObject;
import java.io.BufferedWriter;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** Command line: MODE STORE [--config FILE] [-Cname=value]... [--in FILE] [--out PATH] [--in-place] [--no-start] ... */
public final class Oracle {
    private Oracle() { }

    public static void main(String[] args) throws Exception {
        Writer stdout = new BufferedWriter(new OutputStreamWriter(new FileOutputStream(FileDescriptor.out), StandardCharsets.UTF_8));
        System.setOut(System.err);
        int code = 0;
        try {
            code = run(args, stdout, false);
        } catch (Throwable t) {
            t.printStackTrace();
            code = 2;
        }
        stdout.flush();
        Runtime.getRuntime().halt(code);
    }

    /** With close, stores are shut down afterwards so that the JVM can go on with others. */
    static int run(String[] args, Writer stdout, boolean close) throws Exception {
        if (args.length < 2) {
            System.err.println("usage: MODE STORE [options]; see README.md");
            return 64;
        }
        String mode = args[0];
        Path source = Paths.get(args[1]);
        Properties props = new Properties();
        Map<String, String> opt = new HashMap<>();
        for (int i = 2; i < args.length; i++) {
            String a = args[i];
            if (a.startsWith("-C")) {
                int eq = a.indexOf('=');
                props.setProperty(a.substring(2, eq), a.substring(eq + 1));
            } else if (a.equals("--config")) {
                try (InputStream in = Files.newInputStream(Paths.get(args[++i]))) {
                    props.load(in);
                }
            } else if (a.equals("--in-place") || a.equals("--no-start") || a.equals("--hooks")) {
                opt.put(a, "");
            } else if (a.startsWith("--") && i + 1 < args.length) {
                opt.put(a, args[++i]);
            } else {
                throw new IllegalArgumentException("option " + a);
            }
        }
        if (mode.equals("batch")) {
            return Batch.run(source, Integer.parseInt(opt.getOrDefault("--threads", "6")), stdout);
        }
        if (mode.equals("dispatch")) {
            Map<String, Object> done = Dispatch.run(source.toAbsolutePath(), props, true);
            line(stdout, done);
            return Boolean.TRUE.equals(done.get("load_ok")) ? 0 : 1;
        }
        if (mode.equals("lock")) {
            return hold(source.toAbsolutePath(), props, stdout);
        }
        if (mode.equals("write")) {
            return Live.run(source.toAbsolutePath(), props, Integer.parseInt(opt.getOrDefault("--rate", "1000")), stdout);
        }
        if (mode.equals("offsets")) {
            line(stdout, Report.groups(source));
            return 0;
        }
        if (mode.equals("append")) {
            Files.createDirectories(source);
            new Ops(source.toAbsolutePath(), props, opt.containsKey("--hooks"), stdout).run(Report.lines(Paths.get(opt.get("--in"))));
            return 0;
        }
        Path work = source;
        if (!opt.containsKey("--in-place")) {
            work = Files.createTempDirectory(opt.containsKey("--tmp") ? Paths.get(opt.get("--tmp")) : Paths.get(System.getProperty("java.io.tmpdir")), "oracle-");
            StoreHandle.copyTree(source, work);
        }
        try {
            return inspect(mode, work, props, opt, stdout, close);
        } finally {
            if (work != source) {
                delete(work);
            }
        }
    }

    /** Opens the store in place and keeps it open until standard input ends; says whether the start, which takes the lock, succeeded. */
    private static int hold(Path root, Properties props, Writer stdout) throws Exception {
        StoreHandle handle = new StoreHandle(root, props);
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("load_ok", handle.load());
        try {
            handle.start();
            m.put("locked", true);
        } catch (RuntimeException e) {
            m.put("locked", false);
            m.put("error", String.valueOf(e.getMessage()));
        }
        line(stdout, m);
        stdout.flush();
        if (!Boolean.TRUE.equals(m.get("locked"))) {
            return 1;
        }
        while (System.in.read() >= 0) {
            // until the one who started us closes it
        }
        handle.store.shutdown();
        return 0;
    }

    private static int inspect(String mode, Path work, Properties props, Map<String, String> opt, Writer stdout, boolean close) throws Exception {
        Map<String, Object> boot = new LinkedHashMap<>();
        boot.put("rocketmq", StoreHandle.isFive() ? "5.x" : "4.x");
        boot.put("before", Report.files(work));
        StoreHandle handle = new StoreHandle(work, props);
        try {
            return answer(mode, work, handle, boot, opt, stdout);
        } finally {
            if (close) {
                handle.store.shutdown();
            }
        }
    }

    private static int answer(String mode, Path work, StoreHandle handle, Map<String, Object> boot, Map<String, String> opt, Writer stdout) throws Exception {
        boolean ok;
        try {
            ok = handle.load();
        } catch (Throwable t) {
            // for example OutOfMemoryError when a damaged size field asks for a huge array
            boot.put("load_error", t.toString());
            ok = false;
        }
        boot.put("load_ok", ok);
        Report report = new Report(handle);
        if (ok) {
            boot.put("min_phy_offset", handle.store.getMinPhyOffset());
            boot.put("max_phy_offset_after_load", handle.store.getMaxPhyOffset());
            if (!opt.containsKey("--no-start")) {
                handle.start();
                boot.put("dispatched", handle.waitDispatched(60000));
                Thread.sleep(100);
                boot.put("max_phy_offset", handle.store.getMaxPhyOffset());
            }
            boot.put("index_files", report.indexFiles());
        }
        boot.put("after", Report.files(work));
        if (mode.equals("boot") || !ok) {
            if (opt.containsKey("--out") && mode.equals("report")) {
                file(Paths.get(opt.get("--out")), "boot.json", w -> line(w, boot));
            }
            line(stdout, boot);
            return ok ? 0 : 1;
        }
        switch (mode) {
            case "dump":
                long[] r = report.dump(stdout);
                return r[1] < 0 ? 0 : 3;
            case "queues":
                report.queues(stdout);
                return 0;
            case "query":
                if (opt.containsKey("--in")) {
                    for (JSONObject q : Report.lines(Paths.get(opt.get("--in")))) {
                        line(stdout, report.query(q));
                    }
                } else {
                    JSONObject q = new JSONObject();
                    q.put("topic", opt.get("--topic"));
                    q.put("key", opt.get("--key"));
                    q.put("max_num", Integer.valueOf(opt.getOrDefault("--max", "64")));
                    q.put("begin", Long.valueOf(opt.getOrDefault("--begin", "0")));
                    q.put("end", Long.valueOf(opt.getOrDefault("--end", String.valueOf(Long.MAX_VALUE))));
                    line(stdout, report.query(q));
                }
                return 0;
            case "read":
                for (JSONObject q : Report.lines(Paths.get(opt.get("--in")))) {
                    line(stdout, report.read(q));
                }
                return 0;
            case "bytime":
                for (JSONObject q : Report.lines(Paths.get(opt.get("--in")))) {
                    line(stdout, report.byTime(q));
                }
                return 0;
            case "report":
                Path out = Paths.get(opt.get("--out"));
                Files.createDirectories(out);
                file(out, "expected.jsonl", w -> {
                    long[] n = report.dump(w);
                    boot.put("messages", n[0]);
                    boot.put("walk_stopped_at", n[1] < 0 ? null : n[1]);
                });
                file(out, "queues.jsonl", report::queues);
                if (!work.resolve("consumequeue/CURRENT").toFile().exists()) {
                    file(out, "pulled.jsonl", report::pulled);
                }
                file(out, "groups.json", w -> line(w, Report.groups(work)));
                many(opt, out, "queries", report::query);
                many(opt, out, "reads", report::read);
                many(opt, out, "bytime", report::byTime);
                file(out, "boot.json", w -> line(w, boot));
                line(stdout, boot);
                return 0;
            default:
                throw new IllegalArgumentException("mode " + mode);
        }
    }

    interface Body {
        void write(Writer w) throws IOException;
    }

    interface Answer {
        Map<String, Object> of(JSONObject q);
    }

    private static void many(Map<String, String> opt, Path out, String name, Answer answer) throws IOException {
        String in = opt.get("--" + name);
        if (in != null) {
            List<JSONObject> list = Report.lines(Paths.get(in));
            file(out, name + ".jsonl", w -> {
                for (JSONObject q : list) {
                    line(w, answer.of(q));
                }
            });
        }
    }

    private static void file(Path dir, String name, Body body) throws IOException {
        Files.createDirectories(dir);
        try (Writer w = Files.newBufferedWriter(dir.resolve(name), StandardCharsets.UTF_8)) {
            body.write(w);
        }
    }

    static void line(Writer w, Map<String, Object> m) throws IOException {
        w.write(Json.of(m));
        w.write('\n');
    }

    static void delete(Path p) throws IOException {
        if (Files.isDirectory(p)) {
            for (String n : StoreHandle.files(p)) {
                delete(p.resolve(n));
            }
        }
        Files.deleteIfExists(p);
    }
}
