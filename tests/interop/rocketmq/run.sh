#!/bin/sh
# usage: [ROCKETMQ_VERSION=5.3.3] ./run.sh MODE STORE [options]   (or: ./run.sh -main CLASS args...)
here=$(cd "$(dirname "$0")" && pwd)
v=${ROCKETMQ_VERSION:-4.9.3}
main=mqstore.oracle.Oracle
if [ "$1" = "-main" ]; then main=$2; shift 2; fi
exec java -Xmx${ORACLE_HEAP:-1g} -XX:MaxDirectMemorySize=512m ${ORACLE_GC:--XX:+UseSerialGC} -Dfile.encoding=UTF-8 -Duser.timezone=UTC \
  --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED \
  --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED \
  --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-exports=java.base/sun.nio.ch=ALL-UNNAMED \
  -Drocketmq.client.logUseSlf4j=true -Drmq.logback.configurationFile=rmq.logback.xml $ORACLE_JVM \
  -cp "$here/target/$v/oracle.jar:$here/target/$v/lib/*" "$main" "$@"
