package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	relocketcd "github.com/go-relock/relock/store/etcd"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// This file is locks in a store that is not Redis. docs/STORES.md compares the stores.

const envStore = "RELOCK_STORE"

// backend is a kind of store.
type backend struct {
	name        string // for people
	form        string // of its URLs
	mutexesOnly bool
	// open makes a store, and what the store uses and does not close.
	open func(c *connection, u storeURL) (s store.Store, uses io.Closer, err error)
	// sql is how to open the database of a SQL store; nil for all others.
	sql     func(u storeURL) (driver, source string, err error)
	dialect relocksql.Dialect // of a SQL store
	schema  string            // the file in sql/schema that creates the tables
}

// backends has the kinds of stores by the scheme of their URLs.
var backends = map[string]*backend{
	"etcd":       {name: "etcd", form: "etcd://HOST:2379,HOST:2379/PREFIX", mutexesOnly: true, open: openEtcd},
	"zookeeper":  {name: "ZooKeeper", form: "zookeeper://HOST:2181,HOST:2181/PATH", open: openZooKeeper},
	"postgres":   &postgres,
	"postgresql": &postgres,
	"mysql": {
		name: "MySQL", form: "mysql://HOST:3306/DATABASE",
		open: openSQL, sql: mysqlSource, dialect: relocksql.MySQL, schema: "mysql.sql",
	},
	"sqlite": {
		name: "SQLite", form: "sqlite:PATH",
		open: openSQL, sql: sqliteSource, dialect: relocksql.SQLite, schema: "sqlite.sql",
	},
}

var postgres = backend{
	name: "PostgreSQL", form: "postgres://HOST:5432/DATABASE",
	open: openSQL, sql: postgresSource, dialect: relocksql.Postgres, schema: "postgres.sql",
}

// rawStore returns the URL of a store as it was given, and where it was given; both are empty if
// the locks are in Redis. A flag that names another place wins over the environment.
func (c *connection) rawStore() (raw, source string) {
	if c.store != "" {
		return c.store, "--store"
	}
	elsewhere := c.url != "" || c.sentinel != "" || len(c.cluster) > 0 || len(c.quorum) > 0
	if env := os.Getenv(envStore); env != "" && !elsewhere {
		return env, envStore
	}
	return "", ""
}

// hasStore says whether the locks are in a store that is not Redis.
func (c *connection) hasStore() bool {
	_, source := c.rawStore()
	return source != ""
}

// storeURL is the URL of a store.
type storeURL struct {
	*url.URL
	*backend
	raw    string // as it was given
	source string // where it was given
	hosts  string // several ones have a comma between them
}

// unreadable returns the error of a URL. As with the URL of Redis, the error has no details, which
// can be pieces of a password.
func (u storeURL) unreadable() error {
	return usage("%s cannot be read; it must be %s, with USER:PASSWORD@ before the host if there are such. Characters such as "+
		"@ : / ? # %% in a password, and any @ behind the hosts, must be percent-encoded, and a ?option=value must be one that "+
		"docs/CLI.md describes", u.source, u.form)
}

// storeURL reads the URL of the store. Package url does not read a URL with several hosts, so it is
// given one host for all.
func (c *connection) storeURL() (storeURL, error) {
	raw, source := c.rawStore()
	scheme, rest, _ := strings.Cut(raw, ":")
	u := storeURL{backend: backends[scheme], raw: raw, source: source}
	if u.backend == nil {
		schemes := strings.Join(slices.Sorted(maps.Keys(backends)), ", ")
		return u, usage("%s: must begin with one of %s, and a colon; locks in Redis have --url", source, schemes)
	}
	server, slashes := strings.CutPrefix(rest, "//")
	path := ""
	if end := strings.IndexAny(server, "/?"); end >= 0 {
		server, path = server[:end], server[end:]
	}
	user := server[:strings.LastIndexByte(server, '@')+1]
	u.hosts = server[len(user):]
	one := scheme + "://" + user + "host" + path
	// A / or ? in a password makes the rest of the password look like a path.
	misread := strings.Contains(path, "@")
	if scheme == "sqlite" { // has no host
		one, slashes, misread = raw, true, false
	}
	var err error
	if u.URL, err = url.Parse(one); err != nil || strings.Contains(raw, "#") || !slashes || misread {
		return u, u.unreadable()
	}
	return u, nil
}

// options returns the options of a URL. Options that are not known are an error.
func (u storeURL) options(known ...string) (url.Values, error) {
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, u.unreadable()
	}
	for name := range options {
		if !slices.Contains(known, name) {
			return nil, usage("%s: the URL has an option that is not known; there are %s", u.source, strings.Join(known, ", "))
		}
	}
	return options, nil
}

// addresses returns the hosts, each with a port.
func (u storeURL) addresses(port string) ([]string, error) {
	addrs := strings.Split(u.hosts, ",")
	for i, addr := range addrs {
		if one, err := url.Parse("//" + addr); err == nil && one.Hostname() != "" && one.Host == addr {
			addrs[i] = net.JoinHostPort(one.Hostname(), cmp.Or(one.Port(), port))
		} else {
			return nil, u.unreadable()
		}
	}
	return addrs, nil
}

// tlsOptions are the options of a URL about TLS; the files are those of etcdctl's flags.
var tlsOptions = []string{"tls", "cacert", "cert", "key"}

// tls returns the configuration of TLS, nil without TLS.
func (u storeURL) tls() (*tls.Config, error) {
	options, err := u.options(tlsOptions...)
	if err != nil {
		return nil, err
	}
	switch options.Get("tls") {
	case "true":
	case "", "false":
		if len(options) > len(options["tls"]) {
			return nil, usage("%s: cacert, cert and key are for TLS, and need tls=true", u.source)
		}
		return nil, nil //nolint:nilnil // as in the configurations of the clients
	default:
		return nil, usage("%s: tls must be true or false", u.source)
	}
	config, err := transport.TLSInfo{
		TrustedCAFile: options.Get("cacert"), CertFile: options.Get("cert"), KeyFile: options.Get("key"),
	}.ClientConfig()
	if err != nil {
		return nil, usage("%s: the files of TLS: %w", u.source, err)
	}
	return config, nil
}

// openEtcd opens a store in etcd. The path of the URL and a slash stand before the names. A user
// with a password is authenticated at once.
func openEtcd(c *connection, u storeURL) (store.Store, io.Closer, error) {
	addrs, err := u.addresses("2379")
	if err != nil {
		return nil, nil, err
	}
	config := clientv3.Config{
		Logger: zap.NewNop(), DialTimeout: c.timeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second,
	}
	if config.TLS, err = u.tls(); err != nil {
		return nil, nil, err
	}
	scheme := "http://"
	if config.TLS != nil {
		scheme = "https://"
	}
	for _, addr := range addrs {
		config.Endpoints = append(config.Endpoints, scheme+addr)
	}
	config.Username = u.User.Username()
	config.Password, _ = u.User.Password()
	client, err := clientv3.New(config)
	if err != nil {
		return nil, nil, err
	}
	s, err := relocketcd.New(client, strings.TrimRight(u.Path, "/")+"/")
	return s, client, err
}

// openZooKeeper opens a store in ZooKeeper. The session is as short as the lease allows, since a
// process that died keeps its locks for that time.
func openZooKeeper(c *connection, u storeURL) (store.Store, io.Closer, error) {
	addrs, err := u.addresses("2181")
	if err != nil {
		return nil, nil, err
	}
	config, err := u.tls()
	if err != nil {
		return nil, nil, err
	}
	lease := cmp.Or(c.lease, relock.DefaultTTL)
	// The store gives a lease of at most three quarters of its session.
	session := ((4*lease + 3*time.Millisecond - 1) / 3).Truncate(time.Millisecond)
	options := []relockzk.Option{relockzk.WithSessionTimeout(max(session, time.Second))}
	if u.User != nil {
		password, _ := u.User.Password()
		options = append(options, relockzk.WithAuth("digest", []byte(u.User.Username()+":"+password)))
	}
	if config != nil {
		options = append(options, relockzk.WithDialer((&tls.Dialer{Config: config}).DialContext))
	}
	s, err := relockzk.New(strings.Join(addrs, ",")+u.Path, options...)
	if err != nil {
		return nil, nil, usage("%s: %w", u.source, err)
	}
	return s, nil, nil
}

func postgresSource(u storeURL) (driver, source string, err error) {
	if _, err := pgx.ParseConfig(u.raw); err != nil {
		return "", "", u.unreadable()
	}
	return "pgx", u.raw, nil
}

// mysqlSource makes the source of the driver. The options of the URL are those of the driver.
func mysqlSource(u storeURL) (driver, source string, err error) {
	config := mysql.NewConfig()
	config.User, config.Net, config.DBName = u.User.Username(), "tcp", strings.TrimPrefix(u.Path, "/")
	config.Passwd, _ = u.User.Password()
	addrs, err := u.addresses("3306")
	if err != nil || len(addrs) != 1 {
		return "", "", u.unreadable()
	}
	config.Addr = addrs[0]
	options := u.Query()
	if !options.Has("interpolateParams") {
		options.Set("interpolateParams", "true") // saves round trips
	}
	source = config.FormatDSN() + "?" + options.Encode()
	if _, err := mysql.ParseDSN(source); err != nil || config.DBName == "" {
		return "", "", u.unreadable()
	}
	return "mysql", source, nil
}

// sqliteSource makes the source of the driver. A pragma of the URL comes after those of the
// command.
func sqliteSource(u storeURL) (driver, source string, err error) {
	if u.Host != "" || u.User != nil || u.Path+u.Opaque == "" {
		return "", "", usage("%s: must be sqlite:///PATH (from the root) or sqlite:PATH (from the current directory)", u.source)
	}
	options := u.Query()
	options["_pragma"] = append([]string{"busy_timeout(50)", "journal_mode(WAL)"}, options["_pragma"]...)
	file := *u.URL
	file.Scheme, file.RawQuery = "file", options.Encode()
	return "sqlite", file.String(), nil
}

// openDB makes a pool of connections to the database of a SQL store, and does not connect.
func openDB(u storeURL) (db *sql.DB, source string, err error) {
	driver, source, err := u.sql(u)
	if err != nil {
		return nil, "", err
	}
	_ = mysql.SetLogger(&mysql.NopLogger{}) // its errors are returned too
	db, err = sql.Open(driver, source)
	if err != nil { // the driver of SQLite is not for all systems
		return nil, "", usage("%s: %w", u.source, err)
	}
	return db, source, nil
}

// create makes the tables that are missing. Another process may be at it in a new file of SQLite.
func (u storeURL) create(ctx context.Context, db *sql.DB) error {
	for {
		err := relocksql.Create(ctx, db, u.dialect)
		if err == nil || !strings.Contains(err.Error(), "database is locked") {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func openSQL(c *connection, u storeURL) (store.Store, io.Closer, error) {
	db, source, err := openDB(u)
	if err != nil {
		return nil, nil, err
	}
	if u.dialect == relocksql.SQLite { // whoever may write the file may make its tables
		ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
		defer cancel()
		if err := u.create(ctx, db); err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
	}
	var options []relocksql.Option
	if u.dialect == relocksql.Postgres {
		options = append(options, relocksql.WithListener(pglisten.New(source)))
	}
	s, err := relocksql.New(db, u.dialect, options...)
	return s, db, err
}

// checkStore refuses flags that do not go with the URL of a store.
func (c *connection) checkStore() error {
	_, source := c.rawStore()
	switch {
	case c.url != "" || c.sentinel != "" || len(c.cluster) > 0 || len(c.quorum) > 0:
		return usage("%s: goes with neither --url, --sentinel, --cluster nor --quorum", source)
	case source == envStore && os.Getenv(envQuorum) != "":
		return usage("%s and %s: only one of them", envStore, envQuorum)
	case c.redisson != "" || c.delay != 0:
		return usage("%s: --redisson and --restart-delay are for Redis only", source)
	case c.prefix != relock.DefaultPrefix:
		return usage("%s: --prefix is for Redis only; the path of an etcd:// or zookeeper:// URL stands before the names", source)
	}
	return c.checkGiven()
}

// openStore makes a client over the store. closeAll closes the client and all that it uses.
func (c *connection) openStore(options []relock.Option) (client *relock.Client, closeAll func(limit time.Duration), err error) {
	if err := c.checkStore(); err != nil {
		return nil, nil, err
	}
	u, err := c.storeURL()
	if err != nil {
		return nil, nil, err
	}
	s, uses, err := u.open(c, u)
	if err != nil {
		return nil, nil, err
	}
	client, err = relock.Open(s, options...)
	closers := []io.Closer{client, s, uses}
	if err != nil {
		closers = closers[1:]
	}
	closers = slices.DeleteFunc(closers, func(c io.Closer) bool { return c == nil })
	if err != nil {
		return nil, nil, errors.Join(err, closed(closers))
	}
	return client, closing(closers...), nil
}

// whereStore returns words for the store, without secrets.
func (c *connection) whereStore() string {
	u, err := c.storeURL()
	switch {
	case err != nil:
		return "?"
	case u.hosts == "" || u.URL.Scheme == "sqlite":
		return u.name + " in " + u.Path + u.Opaque
	default:
		return u.name + " at " + u.hosts + u.Path
	}
}

// storeFailure gives an error of a store its exit code.
func (c *connection) storeFailure(err error) error {
	code := codeUnavailable
	u, _ := c.storeURL()
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return usage("%s: %s", c.whereStore(), inFlags(err.Error()))
	case lacksTables(err):
		err = fmt.Errorf("%w; the tables of the locks are missing: relock create-tables makes them, or the file sql/schema/%s", err, u.schema)
	case lacksRight(err):
		code = codeNoPerm
	}
	return &exitError{code: code, err: fmt.Errorf("%s: %w", c.whereStore(), err)}
}

// stateOf returns the SQLSTATE of an error of PostgreSQL, and the number of an error of MySQL.
func stateOf(err error) (state string, number uint16) {
	var postgres interface{ SQLState() string }
	var my *mysql.MySQLError
	if errors.As(err, &postgres) {
		return postgres.SQLState(), 0
	}
	if errors.As(err, &my) {
		return "", my.Number
	}
	return "", 0
}

// lacksTables says whether the tables of a SQL store are missing.
func lacksTables(err error) bool {
	state, number := stateOf(err)
	return state == "42P01" || number == 1146 || strings.Contains(err.Error(), "no such table: relock_")
}

// lacksRight says whether a store wants another user or password, or the user lacks a right.
func lacksRight(err error) bool {
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) && (etcd.Code() == codes.PermissionDenied || etcd.Code() == codes.Unauthenticated) {
		return true
	}
	for _, refusal := range []error{rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, zk.ErrNoAuth, zk.ErrAuthFailed} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	state, number := stateOf(err)
	return strings.HasPrefix(state, "28") || state == "42501" ||
		slices.Contains([]uint16{1044, 1045, 1142, 1143, 1698}, number) // database, user, table, column, plugin
}

func (a *app) createTablesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "create-tables",
		Short: "Create the tables of the locks in the SQL database of --store",
		Long: `Create the tables of the locks in the SQL database of --store, if they are not there. The user needs
the right to create tables. A migration can do the same with the files of sql/schema in the repository.
In a file of SQLite every command makes them.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("%s: has no arguments, and --store names the database", cmd.Name())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return a.failure(a.conn.createTables(cmd.Context())) },
	}
}

// createTables creates the tables of a SQL store.
func (c *connection) createTables(ctx context.Context) error {
	if !c.hasStore() {
		return usage("create-tables: there is no SQL database; --store names one, such as --store %s", postgres.form)
	}
	if err := c.checkStore(); err != nil {
		return err
	}
	u, err := c.storeURL()
	if err != nil {
		return err
	}
	if u.sql == nil {
		return usage("%s: %s has no tables", u.source, u.name)
	}
	db, _, err := openDB(u)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return u.create(ctx, db)
}
