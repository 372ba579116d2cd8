"""The two files a node starts from: Kafka's own settings and those of its log."""

from __future__ import annotations

from headrace.streams.devbroker.record import ClusterRecord, NodeRecord
from headrace.streams.devbroker.security import ADMIN, MECHANISM, NODE_PRINCIPAL, Security

LOG_NAME = "server.log"

# Sized for one machine and short tests: small internal topics that appear at once, groups that
# do not wait for more members, sessions short enough to watch them expire. A killed node may
# come back only when its session has expired.
_COMMON = """\
auto.create.topics.enable=false
num.partitions=1
unclean.leader.election.enable=false
log.retention.ms=-1
log.cleaner.dedupe.buffer.size=16777216
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=4
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""


def server_properties(
    cluster: ClusterRecord, node: NodeRecord, security: Security | None = None
) -> str:
    """Kafka's settings for one node; its data's path is relative to the node's directory."""
    voters = ",".join(f"{peer.id}@localhost:{peer.controller_port}" for peer in cluster.nodes)
    copies = len(cluster.nodes)
    # With three copies two must be written, so that one node may fail without a loss or a halt.
    in_sync = 2 if copies == 3 else 1
    listener = "PLAINTEXT" if security is None else "SASL_SSL"
    guarded = "" if security is None else _guard(security)
    return f"""\
process.roles=broker,controller
node.id={node.id}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners={listener}://localhost:{node.port},CONTROLLER://localhost:{node.controller_port}
advertised.listeners={listener}://{node.endpoint}
listener.security.protocol.map={listener}:{listener},CONTROLLER:{_between_controllers(security)}
inter.broker.listener.name={listener}
log.dirs=data
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
{guarded}{_COMMON}"""


def _between_controllers(security: Security | None) -> str:
    return "PLAINTEXT" if security is None else "SSL"


def _guard(security: Security) -> str:
    """TLS, passwords and rights; the nodes are users without bounds."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return f"""\
sasl.enabled.mechanisms={MECHANISM}
sasl.mechanism.inter.broker.protocol={MECHANISM}
listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config={login} \
username="{ADMIN}" password="{security.password(ADMIN)}";
ssl.keystore.type=PEM
ssl.keystore.location={security.node}
ssl.truststore.type=PEM
ssl.truststore.location={security.authority}
listener.name.controller.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{ADMIN};{NODE_PRINCIPAL}
"""


def log4j_xml() -> str:
    """Log4j settings: one file of at most 10 MB and two older ones, written to the very end."""
    return f"""\
<Configuration status="warn" shutdownHook="disable">
  <Appenders>
    <RollingFile name="file" fileName="logs/{LOG_NAME}" filePattern="logs/{LOG_NAME}.%i">
      <PatternLayout pattern="%d %p %m (%c)%n%throwable"/>
      <SizeBasedTriggeringPolicy size="10 MB"/>
      <DefaultRolloverStrategy max="2"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="info"><AppenderRef ref="file"/></Root>
    <Logger name="org.apache.kafka.common.config" level="warn"/>
    <Logger name="kafka.server.KafkaConfig" level="warn"/>
  </Loggers>
</Configuration>
"""
