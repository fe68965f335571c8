CREATE TABLE IF NOT EXISTS relock_locks (
	name BLOB NOT NULL PRIMARY KEY,
	kind INTEGER NOT NULL,
	arrivals INTEGER NOT NULL,
	token INTEGER NOT NULL,
	used INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS relock_locks_used ON relock_locks (used);
CREATE TABLE IF NOT EXISTS relock_holds (
	name BLOB NOT NULL,
	id BLOB NOT NULL,
	state INTEGER NOT NULL,
	arrival INTEGER NOT NULL,
	quota INTEGER NOT NULL,
	around BLOB NOT NULL,
	kept_until INTEGER NOT NULL,
	keep INTEGER NOT NULL,
	entries INTEGER NOT NULL,
	changes INTEGER NOT NULL,
	inbox TEXT NOT NULL,
	PRIMARY KEY (name, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS relock_holds_line ON relock_holds (name, state, arrival);
CREATE INDEX IF NOT EXISTS relock_holds_inbox ON relock_holds (inbox, state);
CREATE INDEX IF NOT EXISTS relock_holds_kept ON relock_holds (kept_until)
