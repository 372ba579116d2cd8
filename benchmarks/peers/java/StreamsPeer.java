// The jobs with Kafka Streams: the same topologies, bytes and settings as in benchmarks/jobs.
// Arguments: job, bootstrap, application id, prefix of the input topics, output topic, state
// directory, guarantee, commit interval in ms, cache bytes, threads, and further settings as
// name=value. System properties: the parameters of benchmarks/jobs/job.py. Runs until SIGTERM.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;

public final class StreamsPeer {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<JsonNode> JSON = Serdes.serdeFrom(
        (topic, node) -> node == null ? null : bytes(node),
        (topic, data) -> data == null ? null : node(data));
    // A number as JSON: its digits.
    private static final Serde<Long> NUMBER = Serdes.serdeFrom(
        (topic, value) -> value == null ? null : Long.toString(value).getBytes(StandardCharsets.US_ASCII),
        (topic, data) -> data == null ? null : Long.valueOf(new String(data, StandardCharsets.US_ASCII)));

    private static byte[] bytes(JsonNode node) {
        try {
            return MAPPER.writeValueAsBytes(node);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static JsonNode node(byte[] data) {
        try {
            return MAPPER.readTree(data);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    // Keys are JSON texts; as they are never read, they stay as they are, quotes included.
    private static Consumed<String, JsonNode> json() {
        return Consumed.with(TEXT, JSON);
    }

    private static void build(String job, String source, String output, StreamsBuilder builder) {
        switch (job) {
            case "words" -> builder.stream(source + "-in", Consumed.with(TEXT, TEXT))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("by-word", TEXT, TEXT))
                .count(Materialized.as("counts"))
                .toStream()
                .to(output, Produced.with(TEXT, Serdes.Long()));
            case "sum" -> builder.stream(source + "-in", json())
                .groupByKey(Grouped.with(TEXT, JSON))
                .aggregate(() -> 0L, StreamsPeer::add,
                    Materialized.<String, Long, org.apache.kafka.streams.state.KeyValueStore<Bytes, byte[]>>as("sums")
                        .withKeySerde(TEXT).withValueSerde(NUMBER))
                .toStream()
                .to(output, Produced.with(TEXT, NUMBER));
            case "stateless" -> builder.stream(source + "-in", json())
                .filter((key, order) -> order.get("paid").asBoolean())
                .mapValues(order -> (JsonNode) MAPPER.createObjectNode()
                    .put("total", order.get("price").asLong() * order.get("quantity").asLong())
                    .put("user", order.get("user").asText()))
                .to(output, Produced.with(TEXT, JSON));
            case "windows" -> summed(builder.stream(source + "-in", json())
                .groupByKey(Grouped.with(TEXT, JSON))
                .windowedBy(TimeWindows.ofSizeAndGrace(length("window.ms"), length("grace.ms"))), output);
            case "sliding" -> summed(builder.stream(source + "-in", json())
                .groupByKey(Grouped.with(TEXT, JSON))
                .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(length("sliding.ms"), length("grace.ms"))), output);
            case "reduce" -> builder.stream(source + "-in", Consumed.with(TEXT, Serdes.ByteArray()))
                .groupByKey(Grouped.with(TEXT, Serdes.ByteArray()))
                .reduce((one, other) -> Arrays.compareUnsigned(one, other) >= 0 ? one : other,
                    Materialized.as("newest"))
                .toStream()
                .to(output, Produced.with(TEXT, Serdes.ByteArray()));
            case "last_value" -> builder.stream(source + "-in", json())
                .groupByKey(Grouped.with(TEXT, JSON))
                .reduce((one, other) -> other, Materialized.with(TEXT, JSON))
                .toStream()
                .to(output, Produced.with(TEXT, JSON));
            case "stream_table" -> streamTable(source, output, builder);
            case "stream_stream" -> streamStream(source, output, builder);
            case "sessions" -> builder.stream(source + "-in", json())
                .groupByKey(Grouped.with(TEXT, JSON))
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(length("gap.ms"), length("grace.ms")))
                .aggregate(() -> 0L, StreamsPeer::add, (key, one, other) -> one + other,
                    Materialized.<String, Long, org.apache.kafka.streams.state.SessionStore<Bytes, byte[]>>as("sums")
                        .withKeySerde(TEXT).withValueSerde(NUMBER))
                .toStream()
                .to(output, Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), NUMBER));
            case "foreign_key" -> foreignKey(source, output, builder);
            default -> throw new IllegalArgumentException("no such job: " + job);
        }
    }

    private static Duration length(String name) {
        return Duration.ofMillis(Long.parseLong(System.getProperty(name)));
    }

    private static Long add(String key, JsonNode record, Long total) {
        return total + record.get("amount").asLong();
    }

    private static void summed(TimeWindowedKStream<String, JsonNode> windows, String output) {
        windows.aggregate(() -> 0L, StreamsPeer::add,
                Materialized.<String, Long, org.apache.kafka.streams.state.WindowStore<Bytes, byte[]>>as("sums")
                    .withKeySerde(TEXT).withValueSerde(NUMBER))
            .toStream()
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, Long.MAX_VALUE), NUMBER));
    }

    private static void streamTable(String source, String output, StreamsBuilder builder) {
        KTable<String, JsonNode> users = builder.table(source + "-users", json(), Materialized.as("users"));
        builder.stream(source + "-clicks", json())
            .join(users, (click, user) -> with(user.get("name"), "page", click.get("page")),
                Joined.with(TEXT, JSON, JSON))
            .to(output, Produced.with(TEXT, JSON));
    }

    private static void streamStream(String source, String output, StreamsBuilder builder) {
        KStream<String, JsonNode> payments = builder.stream(source + "-payments", json());
        builder.stream(source + "-orders", json())
            .join(payments,
                (order, payment) -> (JsonNode) MAPPER.createObjectNode()
                    .<ObjectNode>set("paid", payment.get("paid"))
                    .<ObjectNode>set("price", order.get("price")),
                JoinWindows.ofTimeDifferenceAndGrace(length("join.ms"), length("grace.ms")),
                StreamJoined.with(TEXT, JSON, JSON))
            .to(output, Produced.with(TEXT, JSON));
    }

    private static void foreignKey(String source, String output, StreamsBuilder builder) {
        KTable<String, JsonNode> customers =
            builder.table(source + "-customers", json(), Materialized.as("customers"));
        builder.table(source + "-purchases", json(), Materialized.as("purchases"))
            // The other table's keys are JSON texts as well.
            .join(customers, purchase -> "\"" + purchase.get("customer").asText() + "\"",
                (purchase, customer) -> with(customer.get("name"), "price", purchase.get("price")),
                TableJoined.as("by-customer"),
                Materialized.<String, JsonNode, org.apache.kafka.streams.state.KeyValueStore<Bytes, byte[]>>as("named")
                    .withKeySerde(TEXT).withValueSerde(JSON))
            .toStream()
            .to(output, Produced.with(TEXT, JSON));
    }

    private static JsonNode with(JsonNode name, String field, JsonNode value) {
        ObjectNode made = MAPPER.createObjectNode();
        made.set("name", name);
        made.set(field, value);
        return made;
    }

    public static void main(String[] args) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[1]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[2]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[5]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[6]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, args[7]);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, args[8]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, args[9]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), "5");
        for (String setting : Arrays.copyOfRange(args, 10, args.length)) {
            String[] pair = setting.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        build(args[0], args[3], args[4], builder);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            ended.countDown();
            return StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        ended.await();
        System.exit(1);
    }
}
