# ruff: noqa: E501
"""400 made secrets in formats that their issuers document, and 30 places of a recording."""

from __future__ import annotations

import base64
import json
import random
import string
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_WORD = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_UPPER = string.ascii_uppercase + string.digits

# A format a row: what it is, its fixed beginning, letters and length of the rest.
_FORMATS: tuple[tuple[str, str, str, int], ...] = (
    ("huggingface", "hf_", _WORD, 34), ("openai", "sk-", _WORD, 48),
    ("openai project", "sk-proj-", _WORD + "-_", 74), ("openai service", "sk-svcacct-", _WORD, 60),
    ("anthropic", "sk-ant-api03-", _WORD + "-_", 93), ("openrouter", "sk-or-v1-", _HEX, 64),
    ("github", "ghp_", _WORD, 36), ("github app", "ghs_", _WORD, 36),
    ("github fine", "github_pat_11A", _WORD, 70), ("gitlab", "glpat-", _WORD, 20),
    ("slack", "xoxb-123456789012-", _WORD, 24), ("slack app", "xapp-1-A012-", _HEX, 40),
    ("aws id", "AKIA", _UPPER, 16), ("google", "AIza", _WORD + "-_", 35),
    ("google secret", "GOCSPX-", _WORD, 28), ("google oauth", "ya29.a0", _WORD, 60),
    ("nvidia", "nvapi-", _WORD + "-_", 64), ("npm", "npm_", _WORD, 36),
    ("pypi", "pypi-AgEIcHlwaS5vcmc", _WORD, 60), ("sendgrid", "SG.abcdefghij0123456789.", _WORD, 43),
    ("stripe", "sk_live_", _WORD, 24), ("stripe restricted", "rk_test_", _WORD, 24),
    ("vault", "hvs.", _WORD, 24), ("databricks", "dapi", _HEX, 32),
    ("digitalocean", "dop_v1_", _HEX, 64), ("groq", "gsk_", _WORD, 52),
    ("replicate", "r8_", _WORD, 37), ("fireworks", "fw_", _WORD, 24),
    ("perplexity", "pplx-", _WORD, 48), ("xai", "xai-", _WORD, 80),
    ("docker", "dckr_pat_", _WORD, 27), ("grafana", "glsa_", _WORD, 32),
    ("sentry", "sntrys_", _WORD, 60), ("linear", "lin_api_", _WORD, 40),
    ("tailscale", "tskey-auth-", _WORD, 24), ("atlassian", "ATATT3xFfGF0", _WORD, 60),
    ("artifactory", "AKCp8", _WORD, 60), ("mailgun", "key-", _HEX, 32),
    ("modal", "as-", _WORD, 22), ("shopify", "shpat_", _HEX, 32),
)  # fmt: skip


@dataclass(frozen=True)
class Secret:
    """One made secret; `known` where its look alone tells what it is."""

    kind: str
    text: str
    known: bool


def _drawn(draw: random.Random, letters: str, count: int) -> str:
    return "".join(draw.choices(letters, k=count - 2)) + draw.choice("23456789") + "q"


def secrets(seed: int = 1) -> list[Secret]:
    """400 of them, each other than the rest."""
    draw = random.Random(seed)
    found = [
        Secret(kind, start + _drawn(draw, letters if letters != _HEX else _HEX[:10], count), True)
        if letters == _WORD
        else Secret(kind, start + "".join(draw.choices(letters, k=count - 1)) + "7", True)
        for kind, start, letters, count in _FORMATS
        for _ in range(4)
    ]
    for _ in range(10):
        parts = [b'{"alg":"HS256"}', b'{"sub":"me"}', draw.randbytes(32)]
        token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
        found.append(Secret("json web token", token, True))
    unnamed: tuple[tuple[str, Callable[[], str]], ...] = (
        ("mixed 16", lambda: _drawn(draw, _WORD, 16)), ("mixed 20", lambda: _drawn(draw, _WORD, 20)),
        ("mixed 24", lambda: _drawn(draw, _WORD, 24)), ("mixed 32", lambda: _drawn(draw, _WORD, 32)),
        ("mixed 40", lambda: _drawn(draw, _WORD, 40)), ("mixed 64", lambda: _drawn(draw, _WORD, 64)),
        ("hex 32", lambda: "".join(draw.choices(_HEX, k=31)) + "a"),
        ("hex 40", lambda: "".join(draw.choices(_HEX, k=39)) + "a"),
        ("hex 64", lambda: "".join(draw.choices(_HEX, k=63)) + "a"),
        ("uuid", lambda: str(uuid.UUID(int=draw.getrandbits(128)))),
        ("base64", lambda: base64.b64encode(draw.randbytes(33)).decode().replace("+", "x")),
        ("letters", lambda: "".join(draw.choices(string.ascii_lowercase, k=18))),
        ("capitals", lambda: "".join(draw.choices(string.ascii_uppercase, k=18))),
        ("words", lambda: "-".join("".join(draw.choices(string.ascii_lowercase, k=6)) for _ in range(4))),
        ("password", lambda: "p9" + "".join(draw.choices(_WORD + "._~+!", k=14)) + "Q"),
        ("digits", lambda: "9" + "".join(draw.choices(string.digits, k=15))),
    )  # fmt: skip
    while len(found) < 400:
        for kind, make in unnamed:
            found.append(Secret(kind, make(), False))
    return found[:400]


# 30 places: a command's words, texts, and values of JSON. In the last five no name tells.
PLACES: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("option", lambda s: ["vllm", "serve", "m", "--api-key", s, "--port", "8000"]),
    ("option=", lambda s: ["vllm", "serve", "m", f"--hf-token={s}", "-tp", "2"]),
    ("short form", lambda s: ["vllm", "serve", "m", "--hf-tok", s]),
    ("docker -e", lambda s: ["docker", "run", "-e", f"HF_TOKEN={s}", "vllm/vllm-openai", "--model", "m"]),
    ("docker --env=", lambda s: ["docker", "run", f"--env=VLLM_API_KEY={s}", "image"]),
    ("bash -c", lambda s: ["bash", "-c", f"export HF_TOKEN='{s}'; vllm serve m --port 1"]),
    ("bash -c twice", lambda s: ["ssh", "h", f"bash -lc \"DB_PASSWORD='{s}' vllm serve m\""]),
    ("argument of a script", lambda s: ["bash", "-c", 'vllm serve m --api-key "$1"', "_", s]),
    ("variable of a script", lambda s: ["sh", "-c", f"T={s}; vllm serve m --api-key $T"]),
    ("fish", lambda s: ["fish", "-c", f"set -x HF_TOKEN {s}; vllm serve m"]),
    ("csh", lambda s: f"setenv HF_TOKEN {s}\nvllm serve m"),
    ("pipe", lambda s: f"echo {s} | xargs vllm serve m --api-key"),
    ("curl -H", lambda s: f'curl -H "Authorization: Bearer {s}" http://h/v1/models'),
    ("URL's login", lambda s: f"downloading from https://me:{s}@host/models/x"),
    ("URL's query", lambda s: f"GET https://h/v1/models?api_key={s}&page=2"),
    ("json argument", lambda s: ["vllm", "serve", "m", "--hf-overrides", json.dumps({"auth_token": s})]),
    ("json in json", lambda s: json.dumps({"a": json.dumps({"password": s, "n": 1})})),
    ("YAML", lambda s: f"model: m\nhf_token: {s}\nport: 8000"),
    ("YAML of Kubernetes", lambda s: f"env:\n  - name: HF_TOKEN\n    value: {s}\n  - name: A\n    value: b"),
    ("YAML's list", lambda s: f"args:\n  - --api-key\n  - {s}\n  - --port"),
    ("YAML's block", lambda s: f"password: |\n  {s}\nport: 1"),
    ("environment", lambda s: {"environment": {"HF_TOKEN": s, "VLLM_PORT": "1"}}),
    ("pairs", lambda s: {"env": [{"name": "DB_PASSWORD", "value": s}]}),
    ("log of arguments", lambda s: f"INFO 11-22 [utils.py:253] non-default args: {{'api_key': ['{s}'], 'model': 'm'}}"),
    ("log of a config", lambda s: f"Initializing a V1 LLM engine with config: model='m', hf_token='{s}', seed=0"),
    ("coloured log", lambda s: f"\x1b[32mINFO\x1b[0m \x1b[1mHF_TOKEN\x1b[0m={s}"),
)  # fmt: skip
UNNAMED_PLACES: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("log line", lambda s: f"INFO downloading with {s} from the hub"),
    ("path", lambda s: f"https://host/models/{s}/config.json"),
    ("unknown option", lambda s: ["vllm", "serve", "m", "-k", s]),
    ("note", lambda s: {"notes": [f"uses {s}"], "lost": f"could not use {s}"}),
)
"""Where a secret is only known by its look."""


def placed() -> Iterator[tuple[str, Secret, Any]]:
    """Each secret in each place in which anything tells that it is one."""
    for secret in secrets():
        for place, make in (*PLACES, *(UNNAMED_PLACES if secret.known else ())):
            yield place, secret, make(secret.text)


MORE_ORDINARY = (
    r"""
vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 --worker-cls vllm.v1.worker.gpu_worker.Worker
vllm serve m --quantization QuarkW4A8Fp8MoEMethod --load-format runai_streamer
vllm serve Zm9vYmFyYmF6cXV4MTIz --served-model-name aGVsbG8gd29ybGQx
vllm serve m --generation-config vllm --hf-config-path /models/x --config-format mistral
vllm serve m --chat-template ./template_chatml.jinja --tool-call-parser hermes --reasoning-parser qwen3
vllm serve m --lora-modules sql=/adapters/sql-lora --max-lora-rank 64
vllm serve m --allowed-origins '["*"]' --ssl-ca-certs /etc/ca.pem --uvicorn-log-level warning
vllm serve m --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_producer"}'
vllm serve m --structured-outputs-config.backend xgrammar --limit-mm-per-prompt '{"image": 2}'
vllm serve m --logits-processors a.B --mm-processor-kwargs '{"max_pixels": 1003520}'
vllm serve m --stream-interval 10 --max-logprobs 20 --pooler-config '{"pooling_type": "LAST"}'
vllm serve m --additional-config '{"enable_token_level": true}' --key-cache-dtype fp8
vllm bench serve --ramp-up-strategy linear --sharegpt-output-len 128 --percentile-metrics ttft,tpot
docker run --rm -it --gpus '"device=0"' --shm-size 16g -v ~/.cache/huggingface:/root/.cache/huggingface vllm/vllm-openai:v0.33.0-aarch64
docker compose -f compose.yaml run --service-ports vllm --model m
docker exec -it vllm-server nvidia-smi
podman run --device nvidia.com/gpu=all --security-opt=label=disable -p 8000:8000 image
set -x; vllm serve m
set -eu -o pipefail
ENV PATH /usr/local/bin
ENV VLLM_USE_V1 1
setenv CUDA_VISIBLE_DEVICES 0
export PYTHONPATH=/workspace; python -m vllm.entrypoints.cli.main serve m
N=4; vllm serve m --tensor-parallel-size $N
bash -c 'vllm serve "$1" --port $2' _ openai/gpt-oss-20b 8000
echo m | xargs vllm serve
echo done > tokens.txt
tee /tmp/out.log <<< hello
git config --global user.name me
aws configure set region eu-central-1
kubectl create configmap x --from-file=a.yaml
nsys export --type sqlite --output r.sqlite r.nsys-rep
ncu --set full --kernel-name regex:fused_moe --launch-count 3 -k fused_moe_kernel vllm serve m
python -m torch.distributed.run --rdzv-id 456 --rdzv-backend c10d a.py
srun -N 2 --ntasks-per-node=8 --gres=gpu:8 vllm serve m
uvx vllm@0.33.0 serve m
vllm collect-env
model: m\\ntokenizer: m\\nmax-num-batched-tokens: 8192
args:\\n  - --model\\n  - openai/gpt-oss-20b\\n  - --port\\n  - "8000"
env:\\n  - name: VLLM_USE_V1\\n    value: "1"
env:\\n  - name: HF_TOKEN\\n    valueFrom:\\n      secretKeyRef:\\n        name: hf\\n        key: token
image: vllm/vllm-openai:v0.33.0\\nports:\\n  - 8000:8000
tokens:\\n  - 128\\n  - 256
description: |\\n  a model\\nport: 1
api_key: none\\nport: 1
auth:\\n  enabled: false
[model]\\nname = "m"\\nsecret = false
hf_token: Optional[str] = None
token: str
api_key: str = os.environ["OPENAI_API_KEY"]
password: SecretStr | None = None
<key>model</key>
<tokens>128</tokens>
<name>value</name>
please give --api-key\\nINFO 11-22 18:00:00 ready
ERROR invalid token: expected 2
ERROR Invalid API key format
Unknown token id 12
Incorrect password file mode 0644
the tokenizer's key is missing
\x1b[32mINFO\x1b[0m Started server process
\x1b[1;36m(EngineCore_0 pid=123)\x1b[0;0m INFO [core.py:64] waiting
(Worker_TP0 pid=456) INFO 11-22 [parallel_state.py:1208] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 0
INFO [default_loader.py:314] Loading weights took 4.31 seconds
INFO [backends.py:609] Using cache directory: /root/.cache/vllm/torch_compile_cache/7c2f1b9a3d/rank_0_0/backbone for vLLM's torch.compile
INFO [monitor.py:34] torch.compile takes 21.42 s in total
INFO [api_server.py:1912] Starting vLLM API server 0 on http://0.0.0.0:8000
INFO: 127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK
INFO [logger.py:40] Received request cmpl-8d2f2c1e7a4b4a0e9a6f6f1d2c3b4a59-0
WARNING [fused_moe.py:1047] Using default MoE config at /opt/vllm/configs/E=128,N=768,device_name=NVIDIA_GB10,dtype=fp8_w8a8.json
INFO [gpu_worker.py:298] Available KV cache memory: 86.12 GiB
INFO [cache_engine] hash_seed=0x9E3779B97F4A7C15 block_hash=8f14e45fceea167a5a36dedd4bea2543
DEBUG [nixl] agent 3f2504e0-4f89-11d3-9a0c-0305e82c3301 registered
VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME=VLLM_OBJECT_STORAGE_SHM_BUFFER_18f4364e8a414c4cbe3f6710bc4b6b4b
VLLM_TORCH_PROFILER_DIR=/tmp/profile
VLLM_MARLIN_USE_ATOMIC_ADD=1
VLLM_KV_CACHE_LAYOUT=NHD
FLASHINFER_CUDA_ARCH_LIST=12.1a
NVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=tesla,driver>=535
CUDA_DEVICE_ORDER=PCI_BUS_ID
UCX_TLS=rc,ud,sm,self,cuda_copy
GLOO_SOCKET_IFNAME=enp1s0f0np0
TRITON_PTXAS_PATH=/opt/venv/lib/python3.12/site-packages/triton/backends/nvidia/bin/ptxas
LS_COLORS=rs=0:di=01;34:ln=01;36
PS1=\\u@\\h:\\w$
SHLVL=1
LANG=C.UTF-8
PASSENGERS=3
KEYBOARD=us
PATTERN=*.py
PATH=/usr/local/cuda/bin:/usr/bin:/bin
RANDOM_SEED=12345
PIN_MEMORY=1
LOGIN_SHELL=bash
GPU-1d94f995-661d-4cf3-8a4b-ffcdc0463fcc
sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709
d41d8cd98f00b204e9800998ecf8427e
025b1b5fd6e5df44ab8c8e5c7bee32d2923a4031150b.cubin
/root/.triton/cache/KTQ5VJ4YVXWJ6K4YQ2J3E5V6OA6S7YV5ZD4GZ2ZJ5Y6Q7K3QK5YA/fused_moe_kernel.cubin
/root/.cache/flashinfer/0.6.1/121a/cached_ops/fused_moe_120/fused_moe_120.so
/tmp/torchinductor_root/qz/cqzv3l5h2b7m6k.py
cutlass3x_sm120_bstensorop_s16864gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32_bf16_bf16_128x128x128
FmhaSm100aKernel_QE4m3KvE2m1OE4m3H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext
bmm_E2m1_E2m1E2m1_Fp32_t128x8x512u2_s6_et128x8_m256x8x64_cga2x1x1_16dp256b_rM_TN_transOut_schPd2x1x2x3
_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90INS1_25CollectiveMainloopFwdSm90ILi2EN4cute5tupleIJNS5_1CILi1EEES8_S8_EEEEEEEEEvNT_6ParamsE
kernel_cutlass_kernel_flashinfercute_dslfused_moeblackwelltensorptri8gmemalign16odiv32_0
_gemm_a16w4_kernel_0d1d2d3de4d5d6d7c8d9d
void moe::dev::routing::routingRenormalize::routingIndicesClusterKernel<KernelParams<float, bfloat16, 128, false>>(Params)
nvjet_tst_128x64_64x8_2x1_v_bz_splitK_bias_TNN
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul>>(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)
Memcpy DtoH (Device -> Pinned)
aten::_scaled_dot_product_flash_attention_for_cpu
Qwen3MoeForCausalLM
MiMoV2ForCausalLM
B12xNvFp4W4A16LinearKernel
FlashInferCutlassNvFp4LinearMethod
CompressedTensorsW4A4MxFp4MoEMethod
unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF
cyankiwi/Qwen3-Next-80B-A3B-Instruct-AWQ-4bit
mradermacher/L3.3-70B-Magnum-v4-SE-i1-GGUF
models--openai--gpt-oss-20b
model-00001-of-00014.safetensors
1.39 x (95 % 1.12 to 1.71)
2026-11-28T20:33:14.123456+00:00
580.95.05
NVIDIA GB10
12.1
""".strip()
    .replace("\\\\n", "\n")
    .split("\n")
)
"""With those of `secret_corpus` 300 values that stay as they are."""


FOREIGN_FORMS = (
    r"""
fish -c 'set -x HF_TOKEN §; vllm serve m'
set -gx HF_TOKEN §
set --export --global HF_TOKEN '§'
set -Ux OPENAI_API_KEY "§"
setenv HF_TOKEN §
csh -c 'setenv HF_TOKEN §; vllm serve m'
T=§; vllm serve m --api-key $T
T="§"; vllm serve m --api-key "$T"
export K=§ && vllm serve m --hf-token ${K}
bash -c 'vllm serve m --api-key "$1"' _ §
bash -c 'vllm serve m --hf-token $2' _ a §
sh -c 'HF_TOKEN=$0 vllm serve m' §
echo § | xargs vllm serve m --api-key
echo '§' | xargs -I{} vllm serve m --api-key {}
aws configure set aws_secret_access_key §
aws configure set profile.x.aws_session_token §
git config --global github.token §
npm config set //registry.npmjs.org/:_authToken §
pip config set global.password §
kubectl create secret generic x --from-literal=hf=§
kubectl create secret generic x --from-literal hf=§
modal token set --token-id ak-§ --token-secret as-§
ngrok config add-authtoken §
ngrok authtoken §
env:\n  - name: HF_TOKEN\n    value: §
env:\n  - name: HF_TOKEN\n    value: "§"
  - value: §\n    name: HF_TOKEN
api-key:\n  - §
api-key:\n  - §\n  - §\nport: 8000
password: |\n  §\nport: 1
hf_token: >-\n  §\nport: 1
hf_token: |-\n    §
hf_token:\n  §
password = TRIPLE\n§\nTRIPLE
Error: Incorrect API key provided: §9. You can find your API key at
openai.AuthenticationError: Incorrect API key provided: §9
Unauthorized: invalid access token §9
https://api.telegram.org/bot123456789:AAF§/sendMessage
/bot123:AAF§
vllm serve m --api-ke §
vllm serve m --api-k §
vllm serve m --hf-tok §
vllm serve m --hf-tok=§
vllm serve m --hf-to §
vllm serve m --ssl-keyfile-pass §
vllm serve m --ssl-keyfile-p=§
wget --http-passw §
GH_PAT=§
AZURE_DEVOPS_EXT_PAT=§
MYPWD=§
SAS=§
AZURE_STORAGE_SAS=§
REGISTRY_AUTH_B64=§
DOCKER_AUTH_CONFIG=§
client-key-data: §
    client-key-data: §
client-certificate-data: LS0t\n    client-key-data: §
OTEL_EXPORTER_OTLP_HEADERS=x-honeycomb-team=§
OTEL_EXPORTER_OTLP_HEADERS="x-honeycomb-team=§,x-honeycomb-dataset=a"
OTEL_EXPORTER_OTLP_HEADERS=signoz-ingestion-key=§
--otlp-headers 'x-honeycomb-team=§'
Set-Item Env:HF_TOKEN §
setx HF_TOKEN §
ENV HF_TOKEN §
htpasswd -bn user §
vault login §
vault kv put secret/x value=§
rclone config create r s3 access_key_id AKIAX secret_access_key §
mc alias set n http://h minio §
smbclient -U user%§ //h/s
ipmitool -H h -U admin -P § power
7z x -p§ a.7z
7z x -p'§' a.7z
openssl enc -aes-256-cbc -k § -in a
ssh-keygen -t rsa -N § -f k
ssh-keygen -t rsa -N '§' -f k
nmcli con modify x wifi-sec.psk §
xfreerdp /u:me /p:§ /v:h
Password is: §9
Password for user: §9
wandb login --relogin §
-H 'x-honeycomb-team: §'
https://outlook.office.com/webhook/a@b/IncomingWebhook/§/c
https://h.webhook.office.com/webhookb2/a@b/IncomingWebhook/§/c
<add key="ApiKey" value="§"/>
<property name="password" value="§"/>
<entry key="hf_token">§</entry>
<accessToken>§</accessToken>
hf_token: str = "§"
HF_TOKEN ?= §
HF_TOKEN+=§
let token: string = "§";
JWT_SIGNING=§
CREDENTIALS_JSON=§
LOGIN=user:§
SALT=§
PASSWORD_SALT=§
PIN=§
OTP_SEED=§
TOTP=§
vllm serve m --api-key\n§
read -s T <<< §; vllm serve m --api-key $T
vllm serve m --api-key <(echo §)
printf '%s' § > /root/.cache/huggingface/token
echo "§" > ~/.huggingface/token
tee token <<< §
""".strip()
    .replace("TRIPLE", '"' * 3)
    .split("\n")
)
"""Ways to give a secret of shells, YAML, tools and other languages."""
