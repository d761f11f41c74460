"""Shapes of private texts of clouds, chats, clusters and other scripts, listed after the rules."""

from __future__ import annotations

SHAPES = tuple(
    r"""
hdfs://nn1.hadoop-kestrel/user/etl/qw
s3a://kestrel-mlops-eu/ckpt/v7
oci://kestrelreg/llm:9
kestrel-mlops-eu.s3-accelerate
azureml://subscriptions/kestrelsub/wk
wasbs://kestrelcont@kestrelacc.blob
dbfs:/FileStore/kestrel/w
file:///Users/zdenka/w
jdbc:postgresql://pgkestrel:5432/x
ssh://zdenka@bastion.kestrel
git@gitlab.kestrel:ml/zd.git
kestrel/zdenka-qwen3-ft
models--kestrel--zdenkaft
snapshots/kestrelhash/zd
%2Fhome%2Fzdenka%2Fkestrel
/home/zdenka/My Models/kestrel v2
"/data/zdenka kestrel/w"
$HOME/kestrel/zdenka
${KESTREL_ROOT}/zd
%USERPROFILE%\kestrel\zd
\\?\C:\kestrel\zdenka
//kestrelnas/zdenka/w
nfs-kestrel:/export/zdenka
kestrelnas:/vol/zd
/proc/4711/root/kestrelzd
zdenka.horvat
Zdenka Horváth
ZDENKA_HORVAT
zdenkaHorvatKestrel
horvat_zdenka@KESTREL
KESTREL\zdenka
uid=1001(zdenka)
zdenka@kestrelbox:~/w
cn=zdenka,ou=ml,dc=kestrel
zdenka+llm@kestrel.co.uk
@zdenkahorvat
https://kestrel.slack.com/archives/C0ZD
https://huggingface.co/kestrel/zd
wss://kestrel-zd.ngrok-free.app
kestrel-zd.tail1f2e3.ts.net
kestrelvm-0012.eastus.cloudapp.azure.com
ip-10-31-7-19.ec2.internal
ec2-3-71-44-9.compute-1.amazonaws.com
i-0a1b2c3d4e5f67890
arn:aws:iam::481920573312:role/kestrel
projects/kestrel-ml-481920/locations/zd
kestrel-zd-7d9f8b6c5-x2x4z
vllm-kestrel-0.vllm-kestrel.zdns.svc.cluster.local
0x0a1f0713
10.31.7.019
2001:db8:31:7::19
[fe80::31:7ff:fe19%kestrel0]
::ffff:10.31.7.19
5c:ba:ef:31:07:19
5cba.ef31.0719
SN-KSTR-0019-ZD
4C4C4544-0042-3510-8057-B7C04F334D32
+43 660 3171919
kestrel.zd.model:v3.1-client-horvat
/home/žofia/модель
/data/张伟/模型
Größmann
Ярослав
zeus-kraken
worker-kraken.rack-b12.krakendc
S-1-5-21-3623811015-3361044348
SHA256:Jk3vQx0uPz9LmN2bVc8XwRtYsAe5GhKq
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKraken kraken@ws
DE89370400440532013000
xn--krken-ira.example
deadbeefcafe
{72f988bf-86f1-41af-91ab-2d7cd011db47}
72f988bf86f141af91ab2d7cd011db47
10.44.9.7:8000
[2001:db8:44::9]:8000
http://kraken-lb/v1
kraken_lb:8000
PWD=/krakenhome
conda-kraken/envs/kr
slurm-krakenjob.out
kraken.sbatch
/dev/shm/kraken_socket
tcp://10.44.9.7:5555
ipc:///tmp/kraken.ipc
kraken@10.44.9.7
L2hvbWUva3Jha2Vu
%2Fsrv%2Fkraken
branch feature/kraken-q4
kraken!prod
kraken#42
kraken$
kräken
KRAKEN2025Q3
kraken_v2.safetensors
org=kraken,team=tentacle
tentacle-llm
"kraken": "tentacle"
<kraken>tentacle</kraken>
""".strip().split("\n")
)
"""Each has at least one of the telling words."""

TELLING = (
    "kestrel", "zdenka", "horvat", "horváth", "481920573312", "481920", "3171919", "4711",
    "0a1b2c3d4e5f67890", "0x0a1f0713", "10-31-7", "3-71-44", "31.7.19", "31.7.019", "5cba.ef31",
    "31:7::19", "31:7ff", "ef:31:07", "kstr", "4c4c4544", "b7c04f334d32",
    "7d9f8b6c5", "x2x4z", "zdns", "c0zd", "žofia", "модель", "张伟", "模型", "größ", "ßmann",
    "ярослав", "kraken", "kräken", "zeus", "b12", "3623811015", "jk3vqx", "aaaac3nz",
    "370400440532", "krken", "deadbeefcafe", "72f988bf", "2d7cd011db47", "44.9.7", "44::9",
    "l2hvbwuv", "tentacle",
)  # fmt: skip
