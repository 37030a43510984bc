-- Times are milliseconds since the Unix epoch. Replicas are indexes, -1 where the
-- engine chose and -2 for none. What is not known is NULL.

-- +goose Up

-- Words that many rows share: models, clients, reasons, outcomes, causes.
CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE) STRICT;

CREATE TABLE requests (
    id           INTEGER PRIMARY KEY,
    ended        INTEGER NOT NULL,
    model        INTEGER NOT NULL,
    replica      INTEGER NOT NULL,
    came_from    INTEGER,
    conversation INTEGER,
    parent       INTEGER,
    client       INTEGER NOT NULL,
    reason       INTEGER NOT NULL,
    why          INTEGER NOT NULL,
    outcome      INTEGER NOT NULL,
    ttfb         INTEGER, -- microseconds
    duration     INTEGER NOT NULL, -- microseconds
    prompt       INTEGER,
    cached       INTEGER,
    completion   INTEGER,
    cause        INTEGER,
    reread       INTEGER,
    part         INTEGER,
    message      INTEGER,
    byte         INTEGER
) STRICT;
CREATE INDEX requests_conversation ON requests (conversation, id) WHERE conversation IS NOT NULL;
CREATE INDEX requests_ended ON requests (ended);

-- Sums of requests by the step in which they ended: over all (dimension 0), by
-- replica (1), by client (2). The latencies are sketches.
CREATE TABLE sums_10s (
    dimension INTEGER NOT NULL, step INTEGER NOT NULL, model INTEGER NOT NULL, member INTEGER NOT NULL,
    requests INTEGER NOT NULL, ok INTEGER NOT NULL, client_error INTEGER NOT NULL, engine_error INTEGER NOT NULL,
    gateway_error INTEGER NOT NULL, cancelled INTEGER NOT NULL,
    placed INTEGER NOT NULL, stayed INTEGER NOT NULL, spilled INTEGER NOT NULL, moved INTEGER NOT NULL,
    cached INTEGER NOT NULL, computed INTEGER NOT NULL, unmeasured INTEGER NOT NULL, completion INTEGER NOT NULL,
    ttfb BLOB, duration BLOB,
    PRIMARY KEY (dimension, step, model, member)
) STRICT, WITHOUT ROWID;
CREATE TABLE sums_1m (
    dimension INTEGER NOT NULL, step INTEGER NOT NULL, model INTEGER NOT NULL, member INTEGER NOT NULL,
    requests INTEGER NOT NULL, ok INTEGER NOT NULL, client_error INTEGER NOT NULL, engine_error INTEGER NOT NULL,
    gateway_error INTEGER NOT NULL, cancelled INTEGER NOT NULL,
    placed INTEGER NOT NULL, stayed INTEGER NOT NULL, spilled INTEGER NOT NULL, moved INTEGER NOT NULL,
    cached INTEGER NOT NULL, computed INTEGER NOT NULL, unmeasured INTEGER NOT NULL, completion INTEGER NOT NULL,
    ttfb BLOB, duration BLOB,
    PRIMARY KEY (dimension, step, model, member)
) STRICT, WITHOUT ROWID;
CREATE TABLE sums_10m (
    dimension INTEGER NOT NULL, step INTEGER NOT NULL, model INTEGER NOT NULL, member INTEGER NOT NULL,
    requests INTEGER NOT NULL, ok INTEGER NOT NULL, client_error INTEGER NOT NULL, engine_error INTEGER NOT NULL,
    gateway_error INTEGER NOT NULL, cancelled INTEGER NOT NULL,
    placed INTEGER NOT NULL, stayed INTEGER NOT NULL, spilled INTEGER NOT NULL, moved INTEGER NOT NULL,
    cached INTEGER NOT NULL, computed INTEGER NOT NULL, unmeasured INTEGER NOT NULL, completion INTEGER NOT NULL,
    ttfb BLOB, duration BLOB,
    PRIMARY KEY (dimension, step, model, member)
) STRICT, WITHOUT ROWID;
CREATE TABLE sums_1h (
    dimension INTEGER NOT NULL, step INTEGER NOT NULL, model INTEGER NOT NULL, member INTEGER NOT NULL,
    requests INTEGER NOT NULL, ok INTEGER NOT NULL, client_error INTEGER NOT NULL, engine_error INTEGER NOT NULL,
    gateway_error INTEGER NOT NULL, cancelled INTEGER NOT NULL,
    placed INTEGER NOT NULL, stayed INTEGER NOT NULL, spilled INTEGER NOT NULL, moved INTEGER NOT NULL,
    cached INTEGER NOT NULL, computed INTEGER NOT NULL, unmeasured INTEGER NOT NULL, completion INTEGER NOT NULL,
    ttfb BLOB, duration BLOB,
    PRIMARY KEY (dimension, step, model, member)
) STRICT, WITHOUT ROWID;
CREATE TABLE sums_1d (
    dimension INTEGER NOT NULL, step INTEGER NOT NULL, model INTEGER NOT NULL, member INTEGER NOT NULL,
    requests INTEGER NOT NULL, ok INTEGER NOT NULL, client_error INTEGER NOT NULL, engine_error INTEGER NOT NULL,
    gateway_error INTEGER NOT NULL, cancelled INTEGER NOT NULL,
    placed INTEGER NOT NULL, stayed INTEGER NOT NULL, spilled INTEGER NOT NULL, moved INTEGER NOT NULL,
    cached INTEGER NOT NULL, computed INTEGER NOT NULL, unmeasured INTEGER NOT NULL, completion INTEGER NOT NULL,
    ttfb BLOB, duration BLOB,
    PRIMARY KEY (dimension, step, model, member)
) STRICT, WITHOUT ROWID;

-- Requests that left their home, per 10 minutes.
CREATE TABLE shifts (
    step INTEGER NOT NULL, model INTEGER NOT NULL, reason INTEGER NOT NULL, why INTEGER NOT NULL,
    came_from INTEGER NOT NULL, replica INTEGER NOT NULL, requests INTEGER NOT NULL,
    PRIMARY KEY (step, model, reason, why, came_from, replica)
) STRICT, WITHOUT ROWID;

-- Why turns were not cached, per hour.
CREATE TABLE causes (
    step INTEGER NOT NULL, model INTEGER NOT NULL, replica INTEGER NOT NULL, cause INTEGER NOT NULL,
    turns INTEGER NOT NULL, reread INTEGER NOT NULL,
    PRIMARY KEY (step, model, replica, cause)
) STRICT, WITHOUT ROWID;

-- Sums over samples of replicas, and how many samples they are of.
CREATE TABLE samples_10s (
    step INTEGER NOT NULL, model INTEGER NOT NULL, replica INTEGER NOT NULL,
    samples INTEGER NOT NULL, in_flight INTEGER NOT NULL, conversations INTEGER NOT NULL,
    measured INTEGER NOT NULL, running INTEGER NOT NULL, waiting INTEGER NOT NULL,
    kv_measured INTEGER NOT NULL, kv REAL NOT NULL,
    PRIMARY KEY (step, model, replica)
) STRICT, WITHOUT ROWID;
CREATE TABLE samples_1m (
    step INTEGER NOT NULL, model INTEGER NOT NULL, replica INTEGER NOT NULL,
    samples INTEGER NOT NULL, in_flight INTEGER NOT NULL, conversations INTEGER NOT NULL,
    measured INTEGER NOT NULL, running INTEGER NOT NULL, waiting INTEGER NOT NULL,
    kv_measured INTEGER NOT NULL, kv REAL NOT NULL,
    PRIMARY KEY (step, model, replica)
) STRICT, WITHOUT ROWID;
CREATE TABLE samples_10m (
    step INTEGER NOT NULL, model INTEGER NOT NULL, replica INTEGER NOT NULL,
    samples INTEGER NOT NULL, in_flight INTEGER NOT NULL, conversations INTEGER NOT NULL,
    measured INTEGER NOT NULL, running INTEGER NOT NULL, waiting INTEGER NOT NULL,
    kv_measured INTEGER NOT NULL, kv REAL NOT NULL,
    PRIMARY KEY (step, model, replica)
) STRICT, WITHOUT ROWID;
CREATE TABLE samples_1h (
    step INTEGER NOT NULL, model INTEGER NOT NULL, replica INTEGER NOT NULL,
    samples INTEGER NOT NULL, in_flight INTEGER NOT NULL, conversations INTEGER NOT NULL,
    measured INTEGER NOT NULL, running INTEGER NOT NULL, waiting INTEGER NOT NULL,
    kv_measured INTEGER NOT NULL, kv REAL NOT NULL,
    PRIMARY KEY (step, model, replica)
) STRICT, WITHOUT ROWID;
CREATE TABLE samples_1d (
    step INTEGER NOT NULL, model INTEGER NOT NULL, replica INTEGER NOT NULL,
    samples INTEGER NOT NULL, in_flight INTEGER NOT NULL, conversations INTEGER NOT NULL,
    measured INTEGER NOT NULL, running INTEGER NOT NULL, waiting INTEGER NOT NULL,
    kv_measured INTEGER NOT NULL, kv REAL NOT NULL,
    PRIMARY KEY (step, model, replica)
) STRICT, WITHOUT ROWID;
