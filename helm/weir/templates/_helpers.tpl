{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "weir" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-weir" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "weir.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: weir
{{ include "weir.selector" . }}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The image of a part: {root, part} */}}
{{- define "weir.image" -}}
{{- $image := index .root.Values.images .part -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "weir.headless" -}}
{{ include "weir.fullname" . }}-controllers
{{- end -}}

{{- define "weir.tlsSecret" -}}
{{- if eq .Values.tls.mode "existingSecret" -}}
{{ .Values.tls.existingSecret }}
{{- else -}}
{{ include "weir.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{/* Names for which the controllers' certificate is good. */}}
{{- define "weir.serverNames" -}}
{{- $service := printf "%s.%s.svc" (include "weir.fullname" .) .Release.Namespace -}}
{{- $pods := printf "*.%s.%s.svc" (include "weir.headless" .) .Release.Namespace -}}
{{- list (include "weir.fullname" .) (printf "%s.%s" (include "weir.fullname" .) .Release.Namespace) $service $pods "localhost" | toJson -}}
{{- end -}}

{{/* Where agents find controllers: each replica by its own name, so that one that is away is passed over. */}}
{{- define "weir.controllers" -}}
{{- if gt (int .Values.controller.replicas) 1 -}}
{{- $root := . -}}
{{- $all := list -}}
{{- range $i := until (int .Values.controller.replicas) -}}
{{- $all = append $all (printf "https://%s-controller-%d.%s.%s.svc:7420" (include "weir.fullname" $root) $i (include "weir.headless" $root) $root.Release.Namespace) -}}
{{- end -}}
{{- join "," $all -}}
{{- else -}}
https://{{ include "weir.fullname" . }}.{{ .Release.Namespace }}.svc:7420
{{- end -}}
{{- end -}}

{{/* A volume with the authority alone: whoever only verifies the controllers never sees their key. */}}
{{- define "weir.caVolume" -}}
- name: ca
  {{- if or .Values.tls.ca (eq .Values.tls.mode "generated") }}
  configMap:
    name: {{ include "weir.fullname" . }}-ca
  {{- else }}
  secret:
    secretName: {{ include "weir.tlsSecret" . }}
    items: [{ key: ca.crt, path: ca.crt }]
  {{- end }}
{{- end -}}

{{/* A token that is bound to the pod, for the controllers alone. */}}
{{- define "weir.tokenVolume" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken:
          audience: {{ .Values.tokenAudience | quote }}
          expirationSeconds: 3600
          path: token
{{- end -}}

{{- define "weir.clientEnv" -}}
- name: WEIR_TLS_CA
  value: /etc/weir/ca/ca.crt
- name: WEIR_TOKEN_FILE
  value: /var/run/secrets/weir/token
{{- end -}}

{{- define "weir.clientMounts" -}}
- name: ca
  mountPath: /etc/weir/ca
  readOnly: true
- name: token
  mountPath: /var/run/secrets/weir
  readOnly: true
{{- end -}}

{{- define "weir.telemetryEnv" -}}
{{- with .Values.telemetry.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* For processes that need no right at all. */}}
{{- define "weir.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "weir.validate" -}}
{{- $store := .Values.controller.store -}}
{{- if and (gt (int .Values.controller.replicas) 1) (ne $store.type "etcd") -}}
{{- fail "controller.replicas above 1 needs controller.store.type=etcd: the embedded store is one controller's own" -}}
{{- end -}}
{{- if and (eq $store.type "etcd") (not $store.etcd.endpoints) -}}
{{- fail "controller.store.type=etcd needs controller.store.etcd.endpoints, as [host:port, ...]" -}}
{{- end -}}
{{- if ne (empty $store.etcd.user) (empty $store.etcd.passwordSecret) -}}
{{- fail "controller.store.etcd.user and controller.store.etcd.passwordSecret go together" -}}
{{- end -}}
{{- if and $store.etcd.clientCertificate (not $store.etcd.tlsSecret) -}}
{{- fail "controller.store.etcd.clientCertificate needs controller.store.etcd.tlsSecret, which holds it" -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "existingSecret") (not .Values.tls.existingSecret) -}}
{{- fail "tls.mode=existingSecret needs tls.existingSecret, the name of a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if and (eq .Values.tls.mode "certManager") (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.mode=certManager needs tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- end -}}

{{/* The pod of a hook, which runs weirctl: {root, args} */}}
{{- define "weir.hookPod" -}}
{{- $root := .root -}}
serviceAccountName: {{ include "weir.fullname" $root }}-hooks
automountServiceAccountToken: false
restartPolicy: Never
{{- with $root.Values.controller.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.controller.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
containers:
  - name: weirctl
    image: {{ include "weir.image" (dict "root" $root "part" "weirctl") }}
    imagePullPolicy: {{ $root.Values.images.weirctl.pullPolicy }}
    args: {{- toYaml .args | nindent 6 }}
    env:
      - name: WEIR_SERVER
        value: https://{{ include "weir.fullname" $root }}.{{ $root.Release.Namespace }}.svc:7420
      {{- include "weir.clientEnv" $root | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    resources:
      requests: { cpu: 10m, memory: 16Mi }
      limits: { memory: 64Mi }
    securityContext: {{- include "weir.unprivileged" $root | nindent 6 }}
    volumeMounts:
      {{- include "weir.clientMounts" $root | nindent 6 }}
volumes:
  {{- include "weir.caVolume" $root | nindent 2 }}
  {{- include "weir.tokenVolume" $root | nindent 2 }}
{{- end -}}
