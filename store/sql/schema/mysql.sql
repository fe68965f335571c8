CREATE TABLE IF NOT EXISTS relock_locks (
	name VARBINARY(255) NOT NULL PRIMARY KEY,
	kind INTEGER NOT NULL,
	arrivals BIGINT NOT NULL,
	token BIGINT NOT NULL,
	used BIGINT NOT NULL,
	INDEX relock_locks_used (used)
) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS relock_holds (
	name VARBINARY(255) NOT NULL,
	id VARBINARY(255) NOT NULL,
	state INTEGER NOT NULL,
	arrival BIGINT NOT NULL,
	quota BIGINT NOT NULL,
	around VARBINARY(255) NOT NULL,
	kept_until BIGINT NOT NULL,
	keep BIGINT NOT NULL,
	entries BIGINT NOT NULL,
	changes BIGINT NOT NULL,
	inbox VARBINARY(63) NOT NULL,
	PRIMARY KEY (name, id),
	INDEX relock_holds_line (name, state, arrival),
	INDEX relock_holds_inbox (inbox, state),
	INDEX relock_holds_kept (kept_until)
) ENGINE=InnoDB
