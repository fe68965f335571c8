//go:build !redis

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"github.com/go-relock/relock"
	relocketcd "github.com/go-relock/relock/store/etcd"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// This file opens locks in a store that is not Redis. docs/STORES.md compares the stores.

// others has the kinds of these stores by the scheme of their URLs.
var others = map[string]*backend{
	"etcd":       {"etcd://HOST:2379,HOST:2379/PREFIX", hosts("etcd", openEtcd), etcdRefuses},
	"zookeeper":  {"zookeeper://HOST:2181,HOST:2181/PATH", hosts("ZooKeeper", openZooKeeper), zooKeeperRefuses},
	"postgres":   postgres,
	"postgresql": postgres,
	"mysql":      {"mysql://HOST:3306/DATABASE", hosts("MySQL", openMySQL), sqlRefuses},
	"sqlite":     {"sqlite:///PATH (from the root) or sqlite:PATH (from the current directory)", openSQLite, sqlRefuses},
}

var postgres = &backend{"postgres://HOST:5432/DATABASE", hosts("PostgreSQL", openPostgres), sqlRefuses}

// storeURL is a URL that may have several hosts.
type storeURL struct {
	*url.URL
	target
	hosts string // several ones have a comma between them
}

// hosts returns open for a target whose URL is read. Package url does not read a URL with several
// hosts, so it is given one host for all.
func hosts(name string, open func(c *connection, u storeURL) (opened, error)) func(c *connection, t target) (opened, error) {
	return func(c *connection, t target) (opened, error) {
		u := storeURL{target: t}
		server, slashes := strings.CutPrefix(t.raw, t.scheme()+"://")
		path := ""
		if end := strings.IndexAny(server, "/?"); end >= 0 {
			server, path = server[:end], server[end:]
		}
		user := server[:strings.LastIndexByte(server, '@')+1]
		u.hosts = server[len(user):]
		var err error
		u.URL, err = url.Parse(t.scheme() + "://" + user + "host" + path)
		// A / or ? in a password makes the rest of the password look like a path.
		if err != nil || !slashes || strings.Contains(path, "@") || strings.Contains(t.raw, "#") {
			return opened{}, t.unreadable()
		}
		c.where = name + " at " + u.hosts + u.Path
		return open(c, u)
	}
}

// addresses returns the hosts, each with a port.
func (u storeURL) addresses(port string) ([]string, error) {
	addrs := strings.Split(u.hosts, ",")
	for i, addr := range addrs {
		one, err := url.Parse("//" + addr)
		if err != nil || one.Hostname() == "" || one.Host != addr {
			return nil, u.unreadable()
		}
		addrs[i] = net.JoinHostPort(one.Hostname(), cmp.Or(one.Port(), port))
	}
	return addrs, nil
}

// tls returns the configuration of TLS, nil without TLS. The files are those of etcdctl's flags.
func (u storeURL) tls() (*tls.Config, error) {
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, u.unreadable()
	}
	for name := range options {
		if !slices.Contains([]string{"tls", "cacert", "cert", "key"}, name) {
			return nil, u.unreadable()
		}
	}
	if options.Get("tls") != "true" {
		if len(options) > 0 {
			return nil, usage("%s: cacert, cert and key are for TLS, and need tls=true", u.source)
		}
		return nil, nil
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
func openEtcd(c *connection, u storeURL) (o opened, err error) {
	config := clientv3.Config{
		Logger: zap.NewNop(), DialTimeout: c.timeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second,
	}
	if config.Endpoints, err = u.addresses("2379"); err != nil {
		return o, err
	}
	if config.TLS, err = u.tls(); err != nil {
		return o, err
	}
	if config.TLS != nil {
		for i, addr := range config.Endpoints {
			config.Endpoints[i] = "https://" + addr
		}
	}
	config.Username = u.User.Username()
	config.Password, _ = u.User.Password()
	client, err := clientv3.New(config)
	if err != nil {
		return o, err
	}
	o.uses = []io.Closer{client}
	o.store, err = relocketcd.New(client, strings.TrimRight(u.Path, "/")+"/")
	return o, err
}

// openZooKeeper opens a store in ZooKeeper. The session is as short as the lease allows, since a
// process that died keeps its locks for that time.
func openZooKeeper(c *connection, u storeURL) (o opened, err error) {
	addrs, err := u.addresses("2181")
	if err != nil {
		return o, err
	}
	config, err := u.tls()
	if err != nil {
		return o, err
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
	if o.store, err = relockzk.New(strings.Join(addrs, ",")+u.Path, options...); err != nil {
		return o, usage("%s: %w", u.source, err)
	}
	return o, nil
}

func openPostgres(_ *connection, u storeURL) (opened, error) {
	if _, err := pgx.ParseConfig(u.raw); err != nil {
		return opened{}, u.unreadable()
	}
	db, err := sql.Open("pgx", u.raw)
	return over(db, err, relocksql.Postgres, relocksql.WithListener(pglisten.New(u.raw)))
}

// openMySQL opens a store in MySQL or MariaDB. The options of the URL are those of the driver.
func openMySQL(_ *connection, u storeURL) (opened, error) {
	config := mysql.NewConfig()
	config.User, config.Net, config.DBName = u.User.Username(), "tcp", strings.TrimPrefix(u.Path, "/")
	config.Passwd, _ = u.User.Password()
	addrs, err := u.addresses("3306")
	if err != nil || len(addrs) != 1 {
		return opened{}, u.unreadable()
	}
	config.Addr = addrs[0]
	options := u.Query()
	if !options.Has("interpolateParams") {
		options.Set("interpolateParams", "true") // saves round trips
	}
	source := config.FormatDSN() + "?" + options.Encode()
	if _, err := mysql.ParseDSN(source); err != nil || config.DBName == "" {
		return opened{}, u.unreadable()
	}
	_ = mysql.SetLogger(&mysql.NopLogger{}) // its errors are returned too
	db, err := sql.Open("mysql", source)
	return over(db, err, relocksql.MySQL)
}

// openSQLite opens a store in a file, and makes its tables: whoever may write the file may do that.
// A pragma of the URL comes after those of relock.
func openSQLite(c *connection, t target) (opened, error) {
	u, err := url.Parse(t.raw)
	if err != nil || strings.Contains(t.raw, "#") || u.Host != "" || u.User != nil || u.Path+u.Opaque == "" {
		return opened{}, t.unreadable()
	}
	c.where = "SQLite in " + u.Path + u.Opaque
	options := u.Query()
	options["_pragma"] = append([]string{"busy_timeout(50)", "journal_mode(WAL)"}, options["_pragma"]...)
	u.Scheme, u.RawQuery = "file", options.Encode()
	db, err := sql.Open("sqlite", u.String())
	if err != nil { // the driver is not for all systems
		return opened{}, usage("%s: %w", t.source, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	if err := createTables(ctx, db); err != nil {
		return opened{uses: []io.Closer{db}}, err
	}
	return over(db, nil, relocksql.SQLite)
}

// createTables makes the tables that are missing. Another process may be at it in a new file.
func createTables(ctx context.Context, db *sql.DB) error {
	for {
		err := relocksql.Create(ctx, db, relocksql.SQLite)
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

// over opens the store in a database.
func over(db *sql.DB, err error, dialect relocksql.Dialect, options ...relocksql.Option) (o opened, _ error) {
	if err != nil {
		return o, err
	}
	o.uses = []io.Closer{db}
	o.store, err = relocksql.New(db, dialect, options...)
	return o, err
}

func etcdRefuses(err error) bool {
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) && (etcd.Code() == codes.PermissionDenied || etcd.Code() == codes.Unauthenticated) {
		return true
	}
	return errors.Is(err, rpctypes.ErrAuthFailed) || errors.Is(err, rpctypes.ErrUserEmpty)
}

func zooKeeperRefuses(err error) bool {
	return errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrAuthFailed)
}

// sqlRefuses reads the SQLSTATE of an error of PostgreSQL, and the number of an error of MySQL.
func sqlRefuses(err error) bool {
	var postgres interface{ SQLState() string }
	if errors.As(err, &postgres) {
		return strings.HasPrefix(postgres.SQLState(), "28") || postgres.SQLState() == "42501"
	}
	var my *mysql.MySQLError
	return errors.As(err, &my) &&
		slices.Contains([]uint16{1044, 1045, 1142, 1143, 1698}, my.Number) // database, user, table, column, plugin
}
