package mqstore.pipeline.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog whose namespaces are the paths of stores: SELECT … FROM mq.`/backup/store`.messages.
 *
 * <p>Python knows the tables of a store and reads them (mqstore.pipeline.source.catalog). Settings spark.sql.catalog.mq.NAME are options
 * of every table. Each scan has a separate Python source, so that the columns and filters of a query reach its reader.
 */
public final class StoreCatalog implements TableCatalog, SupportsNamespaces {
    private static final String FORMAT = "mqstore";
    private static final Pattern SENTENCE = Pattern.compile("(?m)^mqstore\\.[\\w.]+: (.*)$");

    private String name;
    private Map<String, String> settings;

    @Override
    public void initialize(String name, CaseInsensitiveStringMap settings) {
        this.name = name;
        this.settings = settings.asCaseSensitiveMap();
    }

    @Override
    public String name() {
        return name;
    }

    private Map<String, String> options(String[] namespace) {
        Map<String, String> options = new HashMap<>(settings);
        options.put("path", namespace[0]);
        return options;
    }

    /** Returns a column for each table of a store, a struct of the columns of that table. */
    private StructType tables(String[] namespace) {
        if (namespace.length != 1) {
            return new StructType();
        }
        return told(() -> provider().inferSchema(new CaseInsensitiveStringMap(options(namespace))));
    }

    private static TableProvider provider() {
        return DataSource.lookupDataSourceV2(FORMAT, SQLConf.get()).get();
    }

    /** Asks Python; of an error of the package only its sentence is left, without the traceback around it. */
    private static <T> T told(Supplier<T> asked) {
        try {
            return asked.get();
        } catch (Exception error) {
            Matcher own = SENTENCE.matcher(String.valueOf(error.getMessage()));
            if (own.find()) {
                throw new IllegalArgumentException(own.group(1));
            }
            throw error;
        }
    }

    @Override
    public Identifier[] listTables(String[] namespace) {
        return Arrays.stream(tables(namespace).fieldNames()).map(each -> Identifier.of(namespace, each)).toArray(Identifier[]::new);
    }

    @Override
    public Table loadTable(Identifier of) throws NoSuchTableException {
        for (StructField each : tables(of.namespace()).fields()) {
            if (each.name().equalsIgnoreCase(of.name())) {
                Map<String, String> options = options(of.namespace());
                options.put("table", each.name());
                return new StoreTable(name + "." + of, (StructType) each.dataType(), options);
            }
        }
        throw new NoSuchTableException(of);
    }

    private record StoreTable(String name, StructType schema, Map<String, String> options) implements Table, SupportsRead {
        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
            Map<String, String> all = new HashMap<>(given.asCaseSensitiveMap());
            all.putAll(options);
            return new NarrowedScan(schema, new CaseInsensitiveStringMap(all));
        }
    }

    /** Holds what Spark says of a query, and gives it to the builder of the Python source at once. */
    private static final class NarrowedScan implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
        private final StructType schema;
        private final CaseInsensitiveStringMap options;
        private StructField[] columns;
        private Filter[] filters = {};

        NarrowedScan(StructType schema, CaseInsensitiveStringMap options) {
            this.schema = schema;
            this.options = options;
            this.columns = schema.fields();
        }

        /** All of them are left to Spark as well. */
        @Override
        public Filter[] pushFilters(Filter[] filters) {
            this.filters = filters;
            return filters;
        }

        @Override
        public Filter[] pushedFilters() {
            return filters;
        }

        /** A column is read whole, and one at least: a number, which is in the header of a record. */
        @Override
        public void pruneColumns(StructType required) {
            columns = Arrays.stream(required.fieldNames()).map(schema::apply).toArray(StructField[]::new);
            if (columns.length == 0) {
                StructField[] all = schema.fields();
                columns = new StructField[] {
                    Arrays.stream(all).filter(each -> each.dataType() instanceof NumericType).findFirst().orElse(all[0])
                };
            }
        }

        @Override
        public Scan build() {
            return told(() -> {
                Table table = provider().getTable(new StructType(columns), new Transform[0], options);
                ScanBuilder python = ((SupportsRead) table).newScanBuilder(options);
                if (python instanceof SupportsPushDownFilters receiver) {
                    receiver.pushFilters(filters);
                }
                return python.build();
            });
        }
    }

    @Override
    public String[][] listNamespaces() {
        return new String[0][];
    }

    @Override
    public String[][] listNamespaces(String[] namespace) {
        return new String[0][];
    }

    @Override
    public boolean namespaceExists(String[] namespace) {
        return tables(namespace).length() > 0;
    }

    @Override
    public Map<String, String> loadNamespaceMetadata(String[] namespace) {
        return Map.of();
    }

    private UnsupportedOperationException readOnly() {
        return new UnsupportedOperationException("the catalog " + name + " only reads stores; write to one with df.write.format(\"rocketmq\")");
    }

    @Override
    public Table createTable(Identifier of, Column[] columns, Transform[] partitions, Map<String, String> properties) {
        throw readOnly();
    }

    @Override
    public Table alterTable(Identifier of, TableChange... changes) {
        throw readOnly();
    }

    @Override
    public boolean dropTable(Identifier of) {
        throw readOnly();
    }

    @Override
    public void renameTable(Identifier from, Identifier to) {
        throw readOnly();
    }

    @Override
    public void createNamespace(String[] namespace, Map<String, String> metadata) {
        throw readOnly();
    }

    @Override
    public void alterNamespace(String[] namespace, NamespaceChange... changes) {
        throw readOnly();
    }

    @Override
    public boolean dropNamespace(String[] namespace, boolean cascade) {
        throw readOnly();
    }
}
