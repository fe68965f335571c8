// Command apiserver serves the Leases of a real Kubernetes API server, for tests: the generic API
// server and the registry of coordination.k8s.io, with their objects in an etcd. There is no
// authentication, no authorization and no admission, so it belongs on a loopback address.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	apicoordination "k8s.io/api/coordination/v1"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	namer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	"k8s.io/kubernetes/pkg/generated/openapi"
	coordination "k8s.io/kubernetes/pkg/registry/coordination/rest"
)

func main() {
	address := flag.String("address", "127.0.0.1:0", "`host:port` to listen on")
	etcd := flag.String("etcd", "http://127.0.0.1:2379", "`URLs` of etcd, with commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *address, strings.Split(*etcd, ",")); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, address string, etcd []string) error {
	codecs := legacyscheme.Codecs
	config := genericapiserver.NewConfig(codecs)
	config.ExternalAddress = address
	config.LoopbackClientConfig = &rest.Config{Host: "http://" + address}
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	config.EffectiveVersion = basecompatibility.NewEffectiveVersionFromString("1.33", "", "")
	definitions := openapi.GetOpenAPIDefinitions
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer.NewDefinitionNamer(legacyscheme.Scheme))
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer.NewDefinitionNamer(legacyscheme.Scheme))
	config.SkipOpenAPIInstallation = true

	storage := storagebackend.NewDefaultConfig("/registry", nil)
	storage.Transport.ServerList = etcd
	resources := serverstorage.NewResourceConfig()
	resources.EnableVersions(apicoordination.SchemeGroupVersion)
	factory := serverstorage.NewDefaultStorageFactory(*storage, "application/vnd.kubernetes.protobuf", codecs,
		serverstorage.NewDefaultResourceEncodingConfig(legacyscheme.Scheme), resources, nil)
	if err := options.NewEtcdOptions(storage).ApplyWithStorageFactoryTo(factory, config); err != nil {
		return err
	}
	server, err := config.Complete(nil).New("relock-test", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	group, err := coordination.RESTStorageProvider{}.NewRESTStorage(resources, config.RESTOptionsGetter)
	if err != nil {
		return err
	}
	if err := server.InstallAPIGroup(&group); err != nil {
		return err
	}
	if _, _, err := server.PrepareRun().NonBlockingRunWithContext(ctx, time.Second); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	if err := http.Serve(listener, server.Handler); ctx.Err() == nil {
		return err
	}
	return nil
}
