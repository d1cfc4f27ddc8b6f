package mqstore.oracle;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Many command lines in one JVM, several at a time: opening and closing a store is mostly sleeping inside the original classes. */
final class Batch {
    private Batch() { }

    /** Each line of the file: {"id":..., "args":[MODE, STORE, ...], "stdout":FILE}. Prints one {"id","code","error"} per job, in the file's order. */
    static int run(Path jobs, int threads, Writer out) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<Map<String, Object>>> results = new ArrayList<>();
        for (JSONObject job : Report.lines(jobs)) {
            results.add(pool.submit(() -> one(job)));
        }
        int worst = 0;
        for (Future<Map<String, Object>> result : results) {
            Map<String, Object> m = result.get();
            worst = Math.max(worst, m.get("error") == null ? 0 : 2);
            Oracle.line(out, m);
            out.flush();
        }
        pool.shutdown();
        return worst;
    }

    private static Map<String, Object> one(JSONObject job) throws IOException {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("id", job.get("id"));
        JSONArray args = job.getJSONArray("args");
        try (Writer w = Files.newBufferedWriter(Paths.get(job.getString("stdout")), StandardCharsets.UTF_8)) {
            m.put("code", Oracle.run(args.toArray(new String[0]), w, true));
        } catch (Throwable t) {
            StringWriter trace = new StringWriter();
            t.printStackTrace(new PrintWriter(trace));
            m.put("error", trace.toString());
        }
        return m;
    }
}
