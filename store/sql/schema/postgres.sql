CREATE TABLE IF NOT EXISTS relock_locks (
	name bytea NOT NULL PRIMARY KEY,
	kind integer NOT NULL,
	arrivals bigint NOT NULL,
	token bigint NOT NULL,
	used bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS relock_locks_used ON relock_locks (used);
CREATE TABLE IF NOT EXISTS relock_holds (
	name bytea NOT NULL,
	id bytea NOT NULL,
	state integer NOT NULL,
	arrival bigint NOT NULL,
	quota bigint NOT NULL,
	around bytea NOT NULL,
	kept_until bigint NOT NULL,
	keep bigint NOT NULL,
	entries bigint NOT NULL,
	changes bigint NOT NULL,
	inbox text NOT NULL,
	PRIMARY KEY (name, id)
);
CREATE INDEX IF NOT EXISTS relock_holds_line ON relock_holds (name, state, arrival);
CREATE INDEX IF NOT EXISTS relock_holds_inbox ON relock_holds (inbox, state);
CREATE INDEX IF NOT EXISTS relock_holds_kept ON relock_holds (kept_until)
