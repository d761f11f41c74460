# ruff: noqa: E501
"""Planted secrets and ordinary values: seeded tables from which whole corpora are made."""

from __future__ import annotations

import base64
import json
import random
import shlex
import string
from collections.abc import Callable, Iterator
from typing import Any

_WORD = string.ascii_letters + string.digits


def _letters(draw: random.Random) -> str:
    return "".join(draw.choices(string.ascii_lowercase, k=14))


def _mixed(draw: random.Random) -> str:
    return "Z" + "".join(draw.choices(_WORD, k=draw.randint(11, 40))) + "7"


def _base64(draw: random.Random) -> str:
    return base64.b64encode(draw.randbytes(33)).decode().replace("+", "x")


def _punctuated(draw: random.Random) -> str:
    return "k9" + "".join(draw.choices(_WORD + "._~+-!", k=18)) + "Q"


def _spaced(draw: random.Random) -> str:
    return " ".join("".join(draw.choices(_WORD + ",;&:@!#|", k=8)) + "w" for _ in range(3))


BARE = (_letters, _mixed, _base64, _punctuated)
QUOTED = (*BARE, _spaced)
URL = (_letters, _mixed, _punctuated)

# Texts: commands, log lines, headers, URLs, JSON. S is the secret.
_BARE_TEXTS = """
vllm serve m --api-key §
vllm serve m --api-key § --port 8000
vllm serve m --api-key=§ --port 8000
vllm serve m --api-key k1 § k3 --port 8000
vllm serve m --api_key §
vllm serve --hf-token § m
vllm serve m --ssl-keyfile-password § --ssl-keyfile /etc/a.pem
docker run -e HF_TOKEN=§ vllm/vllm-openai:latest --model m
docker run -eHF_TOKEN=§ vllm/vllm-openai:latest
docker run --env VLLM_API_KEY=§ image
docker run --env=HUGGING_FACE_HUB_TOKEN=§ image
HF_TOKEN=§ vllm serve m
env HF_TOKEN=§ NCCL_DEBUG=INFO vllm serve m
export HF_TOKEN=§; vllm serve m
export HF_TOKEN=§ && vllm serve m
set -x\nexport WANDB_API_KEY=§\nvllm serve m
bash -c 'HF_TOKEN=§ vllm serve m'
bash -lc "export PGPASSWORD=§; vllm serve m"
bash -c "bash -c 'export MYSQL_PWD=§; vllm serve m'"
bash -c 'bash -c "export MYSQL_PWD=§; vllm serve m"'
sh -c "$(echo export API_TOKEN=§)"
ssh host 'HF_TOKEN=§ vllm serve m'
ssh host "env OPENAI_API_KEY=§ python a.py"
eval "GITHUB_TOKEN=§ make"
HF_TOKEN=$(echo §) vllm serve m
HF_TOKEN=`echo §` vllm serve m
HF_TOKEN=${HF_TOKEN:-§} vllm serve m
cat <<EOF > .env\nAWS_SECRET_ACCESS_KEY=§\nEOF
echo § | docker login -u me --password-stdin nvcr.io
docker login -u me -p § nvcr.io
docker login --username me --password § nvcr.io
podman run --creds me:§ image
curl -u user:§ https://h/v1/models
curl -uuser:§ https://h/v1/models
curl --user user:§ https://h/v1/models
curl --proxy-user=user:§ https://h/v1/models
curl -H "Authorization: Bearer §" https://h/v1/models
curl -H 'Authorization: Basic §' https://h/v1/models
curl -H "X-Api-Key: §" https://h/v1/models
curl -H X-Api-Key:§9 https://h/v1/models
curl -H X-Api-Key:/§9 https://h/v1/models
curl --header="Authorization: Token §" https://h
curl --header 'Cookie: session=§; theme=dark' https://h
curl -H "api-key: §" https://h
curl -H "Proxy-Authorization: Bearer §" https://h
wget --http-password=§ https://h
sshpass -p § ssh host vllm serve m
mysql -u root -p§ db
redis-cli -h h -a § ping
openssl rsa -passin pass:§ -in a.pem
wandb login §
az storage blob list --account-key §
helm install x --set secrets.hfToken=§
java -Dpassword=§ -jar a.jar
Server=db;Uid=sa;Pwd=§;Database=x
DefaultEndpointsProtocol=https;AccountName=x;AccountKey=§;EndpointSuffix=core.windows.net
Endpoint=sb://h/;SharedAccessKeyName=x;SharedAccessKey=§
machine h login me password §
AWS_SECRET_ACCESS_KEY=§
AWS_SESSION_TOKEN=§
KEY_PASSPHRASE=§
NETRC=§
DB_PASS=§
GRAFANA_CLOUD_KEY=§
PW=§ vllm serve m
INFO 11-22 18:00:00 [utils.py:253] non-default args: {'api_key': ['§'], 'model': 'm'}
INFO 11-22 18:00:00 [utils.py:253] non-default args: {'api_key': ['a', '§', 'b'], 'model': 'm'}
(APIServer pid=7) INFO args: Namespace(api_key=['§'], model='m', hf_token=None)
INFO Namespace(model='m', hf_token='§', port=8000)
Initializing a V1 LLM engine with config: model='m', hf_token='§', seed=0
argv: ['vllm', 'serve', 'm', '--api-key', '§', '--port', '8000']
argv: ['vllm', 'serve', 'm', '--api-key', 'x', '§', '--port', '8000']
argv: ["vllm", "serve", "--api-key=§"]
environ({'HF_TOKEN': '§', 'PATH': '/bin'})
[('HF_TOKEN', '§'), ('PATH', '/bin')]
os.environ["HF_TOKEN"] = "§"
password=SecretStr('§') user='x'
token: §
INFO using token: § from the file
hf_token=§, model=x
user: x\npassword: §\nport: 1
<password>§</password>
WARNING the API key: §9 is deprecated
got Bearer §9 from the client
{"token": "§"}
{"hf_overrides": {"auth": {"user": "x", "password": "§"}}}
{"env": [{"name": "HF_TOKEN", "value": "§"}]}
{"auths": {"nvcr.io": {"auth": "§"}}}
{"a": "{\\"token\\": \\"§\\"}"}
{"a": "{\\"b\\": \\"{\\\\\\"api_key\\\\\\": \\\\\\"§\\\\\\"}\\"}"}
--hf-overrides '{"token": "§"}'
--kv-transfer-config '{"kv_connector_extra_config": {"password": "§", "port": 1}}'
--model-loader-extra-config='{"credentials": {"key": "§"}}'
bash -c "vllm serve m --kv-transfer-config '{\\"password\\": \\"§\\"}'"
{token: §, model: m}
""".strip().split("\n")

_QUOTED_TEXTS = """
HF_TOKEN='§' vllm serve m
HF_TOKEN="§" vllm serve m
export DB_PASSWORD='§'; vllm serve m
bash -c "export DB_PASSWORD='§'; vllm serve m"
bash -c 'export DB_PASSWORD="§"; vllm serve m'
bash -c "bash -c 'DB_PASSWORD=\\"§\\" vllm serve m'"
bash -c 'export DB_PASSWORD='\\''§'\\''; vllm serve m'
bash -c 'export DB_PASSWORD='"'"'§'"'"'; vllm serve m'
vllm serve m --api-key '§' --port 1
vllm serve m --api-key "§" b --port 1
vllm serve m --api-key="§" --port 1
docker run -e "DB_PASSWORD=§" image
docker run --env 'DB_PASSWORD=§' image
['docker', 'run', '-e', 'DB_PASSWORD=§', 'image']
['vllm', '--api-key', '§', 'x']
{"password": "§", "port": 1}
{'password': '§', 'port': 1}
{"a": "{\\"password\\": \\"§\\", \\"b\\": 1}"}
password: "§"
passphrase: §
Config(password='§', port=1)
""".strip().split("\n")

_URL_TEXTS = """
https://user:§@host/v1
http://user:§@127.0.0.1:8000/v1/models
redis://:§@host:6379/0
postgres://user:§@host/db
mongodb+srv://user:§@host/db?w=1
s3://KEYID:§@bucket/models
amqp://user:§@host:5672//
git+https://oauth2:§@gitlab.com/a/b.git
tcp://user:§@10.0.0.1:5555
VLLM_HOST=http://user:§@host:1
HTTPS_PROXY=http://user:§@proxy:3128 vllm serve m
HTTPS_PROXY=user:§@proxy:3128 vllm serve m
NCCL_NET_CONFIG=grpc://user:§@10.0.0.1:1/x
https://acc.blob.core.windows.net/c/m?sv=2024-01-01&sig=§&se=2026
https://b.s3.amazonaws.com/o?X-Amz-Algorithm=A&X-Amz-Signature=§
https://b.s3.amazonaws.com/o?X-Amz-Credential=§&X-Amz-Date=1
https://b.s3.amazonaws.com/o?X-Amz-Security-Token=§&X-Amz-Date=1
https://storage.googleapis.com/b/o?X-Goog-Signature=§&x=1
https://h/v1?api_key=§&model=m
https://h/v1?key=§
https://h/v1?access_token=§#top
https://h/v1?model=m&token=§
https://h/api?code=§&x=1
SharedAccessSignature sr=h&sig=§&se=1
jdbc:postgresql://h/db?user=u&password=§
https%3A%2F%2Fuser%3A§%40host%2Fx
https://h/login?next=https%3A%2F%2Fh%2F%3Ftoken%3D§
%7B%22token%22%3A%22§%22%7D
{"url": "https:\\/\\/user:§@host\\/x"}
rsync -a model/ user:§@host:/models
""".strip().split("\n")

_ARGV: tuple[list[str], ...] = (
    ["vllm", "serve", "m", "--api-key", "§"],
    ["vllm", "serve", "m", "--api-key", "a", "§", "c", "--port", "1"],
    ["vllm", "serve", "m", "--api-key=§"],
    ["vllm", "serve", "m", "--ssl-keyfile-password", "§"],
    ["docker", "run", "-e", "DB_PASSWORD=§", "image"],
    ["docker", "run", "-eDB_PASSWORD=§", "image"],
    ["docker", "run", "--env=DB_PASSWORD=§", "image"],
    ["env", "DB_PASSWORD=§", "vllm", "serve", "m"],
    ["curl", "-u", "user:§", "https://h"],
    ["curl", "-uuser:§", "https://h"],
    ["curl", "--user=user:§", "https://h"],
    ["curl", "-H", "Authorization: Bearer §", "https://h"],
    ["curl", "-H", "X-Api-Key: §", "https://h"],
    ["curl", "--header", "Cookie: a=§", "https://h"],
    ["sshpass", "-p", "§", "ssh", "host"],
    ["mysql", "-p§", "db"],
    ["wandb", "login", "§"],
    ["bash", "-c", "export DB_PASSWORD='§'; vllm serve m --port 1"],
    ["bash", "-lc", "vllm serve m --api-key '§' --port 1"],
    ["ssh", "host", "DB_PASSWORD='§' vllm serve m"],
    ["vllm", "serve", "m", "--hf-overrides", '{"token": "§"}'],
)

_VALUES: tuple[Callable[[str], Any], ...] = (
    lambda s: {"environment": {"HF_TOKEN": s, "VLLM_PORT": "1"}},
    lambda s: {"environment": {"VLLM_API_KEY": s}},
    lambda s: {"args": {"api_key": [s, s], "model": "m"}},
    lambda s: {"a": [{"b": {"credentials": {"user": "x", "pin": s}}}]},
    lambda s: {"env": [{"name": "DB_PASSWORD", "value": s}]},
    lambda s: {"environ": [["DB_PASSWORD", s], ["PATH", "/bin"]]},
    lambda s: {"kv": {"extra": json.dumps({"password": s})}},
    lambda s: {"kv": json.dumps({"extra": json.dumps({"password": s})})},
    lambda s: {"command": ["bash", "-c", f"PGPASSWORD={shlex.quote(s)} vllm serve m"]},
    lambda s: {"config": {"auth_token": s}},
    lambda s: ("--token", s),
)


def _shaped(draw: random.Random) -> Iterator[tuple[str, str]]:
    """Secrets that are known by their look, where no name says so."""

    def some(letters: str, count: int) -> str:
        return "".join(draw.choices(letters, k=count - 1)) + draw.choice(string.digits)

    hexadecimal = "0123456789abcdef"
    upper = string.ascii_uppercase + string.digits
    coded = base64.urlsafe_b64encode
    token = ".".join(
        coded(part).decode().rstrip("=")
        for part in (b'{"alg":"HS256"}', b'{"sub":"me"}', draw.randbytes(32))
    )
    for secret in (
        "hf_" + some(_WORD, 34), "sk-" + some(_WORD, 48), "sk-proj-" + some(_WORD + "-_", 60),
        "sk-ant-api03-" + some(_WORD + "-_", 60), "ghp_" + some(_WORD, 36),
        "gho_" + some(_WORD, 36), "github_pat_" + some(_WORD, 22) + "_" + some(_WORD, 59),
        "glpat-" + some(_WORD, 20), "xoxb-" + some(string.digits, 12) + "-" + some(_WORD, 24),
        "AKIA" + some(upper, 16), "nvapi-" + some(_WORD + "-_", 64),
        "AIza" + some(_WORD + "-_", 35), "npm_" + some(_WORD, 36), token,
        "sk_live_" + some(_WORD, 24), "SG." + some(_WORD, 22) + "." + some(_WORD, 43),
        "hvs." + some(_WORD, 24), "dapi" + some(hexadecimal, 32), "gsk_" + some(_WORD, 52),
        "pypi-AgEIcHlwaS5vcmc" + some(_WORD, 50), "dckr_pat_" + some(_WORD, 27),
    ):  # fmt: skip
        for text in (
            "vllm serve m --served-model-name {}", "INFO downloading with {} from the hub",
            "https://host/models/{}/config.json", '{{"notes": ["uses {}"]}}', "X={} vllm serve m",
        ):  # fmt: skip
            yield text.format(secret), secret
    body = "\n".join(some(_WORD + "+/", 64) for _ in range(3))
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"
    yield f"echo '{key}' > a.pem; vllm serve m", body
    yield json.dumps({"text": key}), body.split("\n")[1]
    login = coded(f"user:{_mixed(draw)}".encode()).decode()
    yield f'curl -H "Authorization: Basic {login}" https://h', login


def planted(seed: int) -> Iterator[tuple[Any, list[str]]]:
    """Texts, command lines and JSON values, each with the parts of its secret."""
    draw = random.Random(seed)
    for texts, kinds in ((_BARE_TEXTS, BARE), (_QUOTED_TEXTS, QUOTED), (_URL_TEXTS, URL)):
        for text in texts:
            secret = draw.choice(kinds)(draw)
            yield text.replace("\\n", "\n").replace("§", secret), secret.split()
    for words in _ARGV:
        secret = draw.choice(QUOTED)(draw)
        yield [word.replace("§", secret) for word in words], secret.split()
    for make in _VALUES:
        secret = draw.choice(QUOTED)(draw)
        yield make(secret), secret.split()
    for text, secret in _shaped(draw):
        yield text, [secret]


ORDINARY_COMMANDS = """
vllm serve m --max-num-batched-tokens 8192 --tokenizer x --kv-cache-dtype fp8
vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 --enable-prefix-caching
vllm serve openai/gpt-oss-20b --max-model-len=131072 --gpu-memory-utilization 0.92
vllm serve m --skip-tokenizer-init --tokenizer-mode auto --tokenizer-revision main
vllm serve m --compilation-config '{"cudagraph_mode": "FULL_AND_PIECEWISE", "pass_config": {}}'
vllm serve m --speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'
vllm serve m --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
vllm serve m --hf-overrides '{"num_hidden_layers": 3, "eos_token_id": 2}'
vllm serve m --ssl-keyfile /etc/ssl/key.pem --ssl-certfile /etc/ssl/cert.pem
vllm serve m --long-prefill-token-threshold 2048 --max-num-seqs 256 --seed 0
vllm serve m --moe-backend marlin --attention-backend FLASH_ATTN -tp 2 -dp 4
vllm serve m --override-generation-config '{"max_new_tokens": 128}'
vllm bench latency --model m --input-len 128 --output-len 64 --batch-size 1
vllm bench serve --base-url http://127.0.0.1:8000 --request-rate inf --num-prompts 100
vllm bench throughput --model m --dataset-name random --random-input-len 512
docker run --gpus all -e NCCL_DEBUG=INFO -v /data:/models:ro -p 8000:8000 vllm/vllm-openai:v0.26.0
docker run --user 1000:1000 --ipc=host -e VLLM_USE_FLASHINFER_SAMPLER=0 image --model m
docker run -e HF_TOKEN image --model m
docker run -e HF_TOKEN=$HF_TOKEN --env-file .env image
podman run -u vllm:vllm --device nvidia.com/gpu=all image
bash -c 'source /opt/venv/bin/activate; vllm serve m --port 8000'
bash -lc "cd /workspace && python -u bench.py --tokens 128 --key-dim 64"
ssh -p 2222 user@host 'nvidia-smi --query-gpu=name --format=csv'
env CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=8 python -m vllm.entrypoints.openai.api_server
python -c 'import torch; print(torch.cuda.is_available())'
ray start --head --port=6379 --num-gpus=8 --node-ip-address=10.0.0.1
torchrun --nproc-per-node 8 --rdzv-endpoint host:29500 train.py --tokens-per-step 4096
nsys profile --trace=cuda,nvtx --cuda-graph-trace=node -o report vllm serve m
spark-prof record --backend cupti --steps 200 --out bundle -- vllm serve m
curl -s http://127.0.0.1:8000/v1/models -H 'Content-Type: application/json'
curl -X POST http://h/v1/completions -d '{"model": "m", "max_tokens": 16, "stop_token_ids": [2]}'
git clone git@github.com:vllm-project/vllm.git --branch v0.26.0
git clone https://github.com/vllm-project/vllm.git
huggingface-cli download Qwen/Qwen3-8B --revision 9c925d64d72725edaf899c6cb9c377fd0709d9c5
mpirun -np 4 -x NCCL_IB_HCA=mlx5_0:1 python a.py
kubectl exec -it pod-7d9f8b6c5d-x2x9z -- vllm serve m
uv run --with vllm==0.26.0 vllm serve m
""".strip().split("\n")

ORDINARY = """
PWD=/home/me/vllm
OLDPWD=/tmp
VLLM_HOST_IP=10.0.0.1
VLLM_CACHE_ROOT=/root/.cache/vllm
VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD=256
VLLM_ATTENTION_BACKEND=FLASHINFER
VLLM_MOE_DP_CHUNK_SIZE=256
VLLM_PLUGINS=spark_prof
NCCL_SOCKET_IFNAME=eth0
NCCL_IB_HCA=mlx5_0:1,mlx5_1:1
NCCL_COMM_ID=10.0.0.1:29500
CUDA_VISIBLE_DEVICES=GPU-8d2f2c1e-7a4b-4a0e-9a6f-6f1d2c3b4a59
NVIDIA_VISIBLE_DEVICES=MIG-3f9a1d77-0f3e-5c1b-bb5e-0f8d3c2b1a00
TORCH_CUDA_ARCH_LIST=9.0a;10.0a
TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor_me
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:512
TRITON_CACHE_DIR=/tmp/triton
LD_PRELOAD=/usr/lib/libjemalloc.so.2
HF_HUB_OFFLINE=1
HF_HOME=/models/hf
TOKENIZERS_PARALLELISM=false
GPU-8d2f2c1e-7a4b-4a0e-9a6f-6f1d2c3b4a59
9c925d64d72725edaf899c6cb9c377fd0709d9c5
189de9f
e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
e3b0c44298fc1c14.cubin
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
vllm/vllm-openai@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
vllm/vllm-openai:v0.26.0@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
nvcr.io/nvidia/vllm:25.09-py3
registry.local:5000/team/auth:v1.2.3
3f2b8c1d9e4a7f60
f81d4fae-7dec-11d0-a765-00a0c91e6bf6
cmpl-4c1f2d3e5b6a7f8091a2b3c4d5e6f708
chatcmpl-tool-8f3c2b1a00d94e5f
Qwen/Qwen3-30B-A3B-Instruct-2507-FP8
meta-llama/Llama-3.1-70B-Instruct
nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8
RedHatAI/Qwen3-30B-A3B-NVFP4
openai/gpt-oss-120b
jinaai/jina-embeddings-v5-text-nano
BAAI/bge-reranker-v2-m3
model.layers.0.self_attn.qkv_proj
model.layers.11.mlp.experts.w13_weight_scale
model.embed_tokens
model.visual.cls_token
lm_head
key_proj
model.layers.3.linear_attn.in_proj_qkvz
weight:uint8:128x2880x1440, scale:float8_e4m3fn:128x2880x90
query_key_value.weight:bfloat16:6144x2048
mask_token:float32:1x1x768
void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Mainloop>>>(Params)
void vllm::moe::topkGatingSoftmax<4, 128, 4, 16, 32, int>(float const*, bool const*, float*)
void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>
_ZN5flash22flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traitsILi128ELi64EEEvNS_16Flash_fwd_paramsE
triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0
triton_poi_fused_cat_token_key_3
nvjet_hsh_192x192_64x4_1x2_h_bz_coopA_NTT
Marlin<(vllm::ScalarTypeId)1125899906909960, 256, 1, 8, 8, 4, 8, false>
fused_moe_kernel_gptq_awq
fw_flash_attention2_forward_kernel_sm90
sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed
execute_context_0(0)_generation_1(1)
gpu_model_runner: forward
ProfilerStep#3
cudaGraphLaunch
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
INFO 11-22 18:00:00 [core.py:64] Initializing a V1 LLM engine (v0.26.0) with config: model='m', tokenizer='m', tokenizer_mode=auto, trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=4096, quantization=mxfp4, kv_cache_dtype=auto, seed=0
INFO 11-22 18:00:00 [utils.py:253] non-default args: {'model': 'm', 'max_num_batched_tokens': 8192, 'api_key': None, 'hf_token': None}
Namespace(model='m', api_key=None, ssl_keyfile=None, hf_token=None, max_logprobs=20, tokenizer=None)
INFO [loggers.py:127] Engine 000: Avg prompt throughput: 12.8 tokens/s, Avg generation throughput: 100.1 tokens/s
INFO [gpu_model_runner.py:3047] Graph capturing finished in 12 secs, took 0.61 GiB
INFO [kv_cache_utils.py:1087] GPU KV cache size: 1,234,567 tokens
INFO [cuda.py:300] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER']
WARNING: sends unauthenticated requests to the HF Hub. Please set a HF_TOKEN to enable higher rate limits
INFO [ray_env.py:63] Copying the following environment variables to workers: ['HF_TOKEN', 'VLLM_USE_RAY_COMPILED_DAG']
INFO [scheduler.py] max_num_batched_tokens=8192 long_prefill_token_threshold=0 token_budget=8192
Mean TPOT (excl. 1st token): 12.3 ms
Time per Output Token (excl. 1st token)
---------------Inter-token Latency----------------
Median ITL (ms): 3.31
time per output token: 12.3ms
eos_token='<|endoftext|>' pad_token='<pad>' bos_token_id=1
special tokens: <|im_start|> <|im_end|>
image_token_index: 151655
token: 151643
{"eos_token_id": [2, 106], "bos_token": "<bos>", "image_token": "<image>"}
{"num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": false}
{"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn"]}
{"name": "key", "value": "4096"}
{"cache_key": "9c925d64d72725edaf899c6cb9c377fd0709d9c5", "sort_key": "name"}
{"auth": null, "password": "", "token": false}
{"tokens": 128, "prompt_tokens": 64, "completion_tokens": 64}
{"key": "value", "hash_key": "abcdef0123"}
http://127.0.0.1:8000/v1/chat/completions
https://huggingface.co/Qwen/Qwen3-8B/resolve/main/config.json?download=true
https://h/metrics?name=a&limit=10&page=2
tcp://10.0.0.1:29500
s3://bucket/models/llama/model-00001-of-00003.safetensors
file:///data/models/config.json
ssh://git@github.com/vllm-project/vllm
http://host:8000/path@v2/x
/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/9c925d64d72725edaf899c6cb9c377fd0709d9c5
/data/secret-lab/password-free/token_counts.parquet
C:/models/keys/layer.bin
rank0: its steps are missing; 12 kernels and 3 ranges are kept without a step
no NVTX marker came: either nothing set any, or NVTX was in use before vLLM
key 3 of 17 was not found in the cache
the tokenizer has 151,936 tokens
attention keys and values are fp8
first token after 31 ms, last token after 900 ms
author: the vLLM team <team@vllm.ai>
torch.compile (VLLM_COMPILE), CUDA graphs (FULL)
forward_pass=12.1ms backward_pass=0 fusion_pass: enabled
post_grad_custom_post_pass=None
step 12: 3 requests, token count 17, key dims 128
basic operations on tensors
Basic block 12 of kernel
bearer of the figure
authentication is disabled
Traceback (most recent call last): File "/opt/vllm/engine.py", line 12, in step
KeyError: 'num_key_value_heads'
ValueError: token ids must be integers, got <class 'str'>
api_server.py: started with api_key=None
api_key=args.api_key, hf_token=hf_token
usage: vllm serve [--api-key API_KEY [API_KEY ...]]
use --api-key to protect it
def login(token: str, password: Optional[str] = None) -> None
HF_TOKEN=${HF_TOKEN} docker compose up
password: ***
--api-key *** --port 1
https://user:***@host/x
NVIDIA H100 80GB HBM3
580.159.03
Intel(R) Xeon(R) Platinum 8480+
10.0.0.1:8000
fe80::1ff:fe23:4567:890a
0x7f3c2a1b4d60
2026-11-22T18:00:00+00:00
cuda:0
moe=spark_prof,qkv=marlin
float8_e4m3fn
torch.bfloat16
enable_sm90
key
token
secret
50%
100%25
a=b&c=d
f(x) = 3 * x + 1
""".strip().split("\n")
