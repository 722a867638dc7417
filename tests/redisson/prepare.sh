#!/bin/sh
# Fetches Redisson with Maven, and compiles the Java programs in this folder. If `java`, `javac` or `mvn` is missing, or
# Maven cannot fetch Redisson, prints the reason and exits with status 3, so that the tests and the benchmark can
# continue without Redisson.
cd "$(dirname "$0")" || exit 1

cannot() {
    echo "$*"
    exit 3
}

for program in java javac mvn; do
    "$program" -version >/dev/null 2>&1 || cannot "\`$program\` is not there: Redisson needs a JDK, 17 or later, and Maven"
done
mvn --batch-mode --quiet dependency:copy-dependencies </dev/null >&2 || cannot 'Maven could not fetch Redisson, see above'
mkdir -p target/classes
javac --release 17 -encoding UTF-8 -cp 'target/lib/*' -d target/classes src/main/java/*.java
